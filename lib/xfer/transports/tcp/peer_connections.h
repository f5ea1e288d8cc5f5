// One peer's rails and their connections. Private to tcp/. Each connection pulls what suits its
// rail, keeps several requests in flight, and fences the requests that it abandons.
//
// Fencing: an abandoned read ends with its socket. An abandoned write may be in the owner's socket
// buffer. It is completed only when the owner acknowledged, over another connection, that it
// applies no more bytes of the old one (or is known dead). A cancelled write is completed at once;
// the next write waits for that acknowledgement instead.
//
// Thread: push(), tick(), ping() from any; each connection has its own thread.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "xfer/rails/endpoint_pool.h"
#include "xfer/rails/rail_queue.h"
#include "xfer/transports/tcp/link.h"
#include "xfer/transports/tcp/tcp_transport.h"

namespace mc::xfer::tcp {

class TcpTransport::PeerConnections {
 public:
  PeerConnections(PeerPtr peer, std::vector<AddressPair> routes, Sink& sink, const Clock& clock,
                  const Config& config, EndpointPool& pool);
  // Joins. What is in flight fails, unless the peer was merely replaced: then it is answered first,
  // so that no write is sent again while its first attempt is still under way.
  ~PeerConnections();
  // A short slice whose caller waits for it anyway is carried on the caller's thread, if a
  // connection idles: two threads less to wake.
  void push(SlicePtr slice);
  std::vector<RailIndex> tick();  // rails to ping
  Time next_check() const { return queue_.next_check(); }
  void ping(RailIndex rail);  // blocks for a moment
  void describe(uint64_t bytes, Path& path) const;

 private:
  struct Flight {  // sent, not answered
    AttemptPtr attempt;
    uint64_t id;
    Link::Asked asked() const { return {attempt.get(), id}; }
  };
  struct Connection {
    Connection(RailIndex r, PeerPtr peer, const AddressPair& route, const Clock& clock,
               Duration timeout)
        : rail(r), link(std::move(peer), route, clock, timeout) {}
    const RailIndex rail;
    bool reserved = false;  // for high-priority work, while there is any
    Link link;
    EndpointPool::Id endpoint = 0;
    Time used{};  // when it was last busy
    uint64_t next_id = 1;
    uint64_t bytes = 0;             // of the flights
    std::deque<Flight> flights;     // answered in order
    bool full = false;              // of small ones: not topped up one by one, but filled anew
    std::vector<AttemptPtr> group;  // to be sent together
    // Guarded by mutex_: its thread has work (or is not there yet), or a caller that waits
    // for its slice has taken it.
    bool busy = true, borrowed = false;
    bool shut = false;  // by us, to cancel an attempt: its end is no fault of the rail
  };
  // Enough in flight to hide a round trip, whether slices are large or small.
  static constexpr size_t kFlightsMin = 4, kFlightsMax = 64;
  static constexpr uint64_t kBytesInFlight = 4u << 20;
  static constexpr uint64_t kGroupBytes = 1u << 20;  // sent together, of small ones
  static constexpr uint64_t kShort = 64u << 10;      // worth looking again before sleeping
  static constexpr Duration kFresh = std::chrono::milliseconds(1);

  void add_connection(RailIndex rail, bool reserved) MC_REQUIRES(mutex_);
  Connection* borrow();
  void give_back(Connection& c);
  void run(Connection& c);
  AttemptPtr wait_for_work(Connection& c);
  AttemptPtr more_work(Connection& c);
  bool has_room(Connection& c) const;
  void gather(Connection& c, AttemptPtr first);
  void carry(Connection& c);
  Result<> start(Connection& c);
  Result<> ready(Connection& c, const Stream::GiveUp& give_up);
  void rest(Connection& c);
  Result<> receive(Connection& c);
  void drop(Connection& c, const Error& why);
  void cancel_attempt(const AttemptPtr& attempt);
  Stream::GiveUp watch(const Connection& c);
  Result<> cancelled_or_expired(const Slice& slice) const;  // an error if it is, or is pointless
  Result<> cancelled_or_expired(const Attempt& attempt) const;

  // ---- fencing (peer_connections_fence.cc)
  bool nothing_given_up() const;
  Result<> retire_given_up(Link& link, const Stream::GiveUp& give_up);
  bool fence(RailIndex failed, const std::vector<Flight>& waiting);
  bool fence_over(RailIndex rail, const Stream::GiveUp& give_up);
  std::vector<RailIndex> by_fitness(RailIndex last) const;

  const PeerPtr peer_;
  const std::vector<AddressPair> routes_;  // by rail
  const Clock& clock_;
  const Config& config_;
  EndpointPool& pool_;
  RailQueue queue_;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  Condition returned_;  // a borrowed connection was given back, or a fence may be tried again
  bool draining_ MC_GUARDED_BY(mutex_) = false;
  bool spares_ MC_GUARDED_BY(mutex_) = false;  // rails outside the map have connections
  std::vector<std::unique_ptr<Connection>> connections_ MC_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ MC_GUARDED_BY(mutex_);  // one each
  std::unordered_map<AttemptId, Connection*> carrying_ MC_GUARDED_BY(mutex_);
  // Connections given up with writes in flight: the owner must be done with them before the next
  // write, or bytes of an abandoned attempt could land on top of it.
  std::deque<Nonce> given_up_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer::tcp
