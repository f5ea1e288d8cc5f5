// The rails to one peer, and the transfers on each. Private to rdma/*.cc.
//
// Fencing: an abandoned attempt is waited for, as long as Patience says; then its queue pair ends.
// Once that is destroyed here, no transfer of it reads or writes our memory. A write is completed
// only when the owner has closed its end too, so that no byte of it can land later. A write that
// is late or cancelled is completed at once; the next write to this peer then waits instead.
//
// Thread: any. The control thread makes and breaks connections.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "xfer/transports/rdma/connection.h"
#include "xfer/transports/rdma/rdma_transport.h"

namespace mc::xfer::rdma {

struct NicPair {
  size_t nic = 0, remote = 0;  // the local NIC, and the peer's
  RailInfo info;
};
// Every pair that can be connected, those of the rail map first. kUnavailable: there is none.
Result<std::vector<NicPair>> routes_to(const Peer& peer,
                                       const std::vector<std::unique_ptr<Nic>>& nics,
                                       const NicTiers& tiers);

class PeerConnections : public std::enable_shared_from_this<PeerConnections> {
 public:
  PeerConnections(RdmaTransport& transport, PeerPtr peer, std::vector<NicPair> routes, Sink& sink);
  void start();  // before the first push
  void push(SlicePtr slice);
  void release();  // what push() held back
  Transport::InlineResult try_inline(const Request& request, const MemoryLocation& memory,
                                     const Transport::Begin& begin);
  // Lets each rail take what it should, and posts that. True: some was posted. Without `kick` the
  // caller looks for completions, or has others do so.
  bool pump(bool kick = true);
  bool pump_rail(RailIndex rail, bool kick = true);
  bool drain();  // looks for completions of its NICs; true: there were some
  void kick();   // has the NICs' threads do so
  // While one lives its owner looks for completions, and the NICs' threads do not.
  class Attending {
   public:
    explicit Attending(PeerConnections& connections)
        : connections_(connections), outer_(std::exchange(here, this)) {
      begin();
    }
    ~Attending() {
      here = outer_;
      end();
    }
    Attending(const Attending&) = delete;
    Attending& operator=(const Attending&) = delete;

    // While one lives the NICs' threads look after all: its thread is about something that takes
    // long.
    class Pause {
     public:
      Pause() : paused_(here) {
        for (Attending* a = paused_; a != nullptr; a = a->outer_) a->end();
      }
      ~Pause() {
        for (Attending* a = paused_; a != nullptr; a = a->outer_) a->begin();
      }
      Pause(const Pause&) = delete;
      Pause& operator=(const Pause&) = delete;

     private:
      Attending* const paused_;
    };

   private:
    void begin() {
      connections_.each_nic([](Nic& nic) { nic.attend(); });
    }
    void end() {
      connections_.each_nic([](Nic& nic) { nic.leave(); });
      connections_.kick();
    }
    static inline thread_local Attending* here = nullptr;  // the innermost of this thread
    PeerConnections& connections_;
    Attending* const outer_;
  };
  void tick();             // on the control thread, every few milliseconds while there is work
  void release_claimed();  // connections that are claimed but unused; the same thread
  bool wants_tick();  // the same thread: something may have to be done. Of 1000 peers most rest
  bool idle() const { return queue_.idle() && !busy(); }
  Time next_check() const { return queue_.next_check(); }
  void describe(uint64_t bytes, Path& path) const;
  void close();       // fails what is queued
  void disconnect();  // once idle; on the control thread
  void port_changed(const Nic& nic, bool up);
  void lost(const Nic& nic, const char* why);  // on the control thread
  void back(const Nic& nic);
  const Peer& peer() const { return *peer_; }

  // With the NIC's poll lock held.
  void completed(RailIndex rail, const ibv_wc& wc, Outbox& out);
  void ended(const AttemptPtr& attempt, Result<> outcome) {
    queue_.complete(attempt, std::move(outcome));
  }
  void pinged(RailIndex rail, Duration took);
  void broke(RailIndex rail, uint32_t connection);

 private:
  enum class State : uint8_t { kIdle, kConnecting, kReady, kClosing };
  struct Endpoint {
    explicit Endpoint(NicPair r) : route(std::move(r)) {}
    const NicPair route;
    Mutex mutex;
    State state MC_GUARDED_BY(mutex) = State::kIdle;
    std::shared_ptr<Connection> connection MC_GUARDED_BY(mutex);
    std::shared_ptr<Connection> replaced MC_GUARDED_BY(mutex);  // it ends what it has; null: none
    Time replaced_since MC_GUARDED_BY(mutex){};
    Patience patience MC_GUARDED_BY(mutex);
    std::vector<AttemptPtr> waiting MC_GUARDED_BY(mutex);  // for the connection
    bool ping MC_GUARDED_BY(mutex) = false;                // wanted, once connected
    EndpointPool::Id pooled MC_GUARDED_BY(mutex) = 0;
    bool claimed MC_GUARDED_BY(mutex) = false;  // in the pool: it is in use
    bool again MC_GUARDED_BY(mutex) = false;    // and was used more than once meanwhile
    std::atomic<uint32_t> pumps{0};             // one pumps, others have it look again
    // Of the control thread:
    Time connecting{}, down{};                                // since then; {}: it is not
    Connection* with(uint32_t id) const MC_REQUIRES(mutex) {  // null: neither
      if (connection != nullptr && connection->id() == id) return connection.get();
      return replaced != nullptr && replaced->id() == id ? replaced.get() : nullptr;
    }
  };
  // What is held until the owner has closed its end.
  struct Farewell {
    CloseQueuePair message;
    uint64_t epoch = 0;  // of its device, when the connection was made
    std::vector<FlightPtr> writes;
    FlightPtr doubted;  // its key was refused
    Error why;
    bool before = false;  // no write to the peer is posted before it is answered
    bool stuck = false;   // and it is not: writes fail meanwhile
    Time until{};
  };
  using FarewellPtr = std::shared_ptr<Farewell>;

  Nic& nic_of(RailIndex rail) const;
  bool busy() const;
  // ---- taking work (peer_connections.cc, peer_connections_inline.cc)
  void go();
  template <class Visit>
  void each_nic(const Visit& visit) {
    uint64_t seen = 0;
    for (RailIndex r = 0; r < endpoints_.size(); ++r) {
      const uint64_t bit = uint64_t{1} << (endpoints_[r]->route.nic % 64);
      if ((seen & bit) == 0) visit(nic_of(r));
      seen |= bit;
    }
  }
  bool feed(RailIndex rail);
  bool carry(SlicePtr& slice);
  std::vector<AttemptPtr> take(RailIndex rail, size_t most);
  bool claim(RailIndex rail, bool use = false);
  void rest(RailIndex rail);
  void launch(RailIndex rail, std::vector<AttemptPtr> attempts);
  // What moves, and how: `device`, the local bytes are not the host's to read.
  struct Cargo {
    Op op = Op::kRead;
    std::byte* local = nullptr;
    Piece piece;
    Guard guard;
    bool device = false;
  };
  // All of a flight but its other end. Without locks: it may register memory, which takes long.
  Result<FlightPtr> prepare(RailIndex rail, const DevicePtr& device, uint32_t inline_max,
                            const Cargo& cargo) const;
  Result<> find(const NicPair& route, const Connection& connection, const Guard& guard,
                Flight& flight) const;
  Transport::InlineResult post_now(RailIndex rail, const Request& request,
                                   const Transport::Begin& begin) MC_TSA(no_thread_safety_analysis);
  void give_back(const AttemptPtr& attempt, const Error& why, bool recalled);
  void fail_queued(RailIndex rail, const Error& why);
  void cancel_attempt(const AttemptPtr& attempt);
  void raise(RailIndex rail, const AttemptPtr& attempt);
  Result<> cancelled_or_expired(const Slice& slice) const;
  Result<> cancelled_or_expired(const Attempt& attempt) const;
  // ---- connections (peer_connections_setup.cc), on the control thread
  void want_connection(RailIndex rail);  // any thread
  void connect(RailIndex rail);
  bool nic_comes_back(RailIndex rail, bool peers_away = false);
  Result<> ask(RailIndex rail, EndpointPool::Id pooled);
  void connected(RailIndex rail, EndpointPool::Id pooled,
                 const std::shared_ptr<Connection>& connection,
                 const Result<QueuePairOpened>& answer);
  void not_connected(RailIndex rail, const Error& why);
  void evict(RailIndex rail);
  void give_up(RailIndex rail, uint32_t connection, Error why, bool ours);  // any thread
  void tear_down(RailIndex rail, uint32_t connection, const Error& why, bool ours);
  void part(RailIndex rail, std::shared_ptr<Connection> connection, Error why, bool ours);
  void say_farewell(const FarewellPtr& farewell);
  void parted(const FarewellPtr& farewell, const Result<QueuePairClosed>& answer);
  void ping(RailIndex rail);
  void send_ping(RailIndex rail);
  void check(RailIndex rail, Time now);
  void end_unwanted(RailIndex rail, Time now);

  RdmaTransport& transport_;
  const PeerPtr peer_;
  const Clock& clock_;
  const Duration peer_timeout_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;  // by rail
  RailQueue queue_;
  std::atomic<bool> closed_{false};
  std::atomic<uint32_t> followed_{0};   // slices that others followed at once
  std::atomic<bool> held_{false};       // some of them wait for release()
  std::atomic<bool> roomy_{false};      // a NIC has room again for what is queued
  std::atomic<bool> loose_{false};      // try_inline() left a connection claimed
  bool saw_down_ = false;               // a NIC, when it last looked; of the control thread
  std::atomic<uint32_t> first_{0};      // the rail tried first
  std::atomic<uint32_t> farewells_{0};  // not answered
  std::atomic<uint32_t> barriers_{0};   // of them, those that writes wait for
  std::atomic<uint32_t> stuck_{0};      // of those, which the owner does not answer
};

}  // namespace mc::xfer::rdma
