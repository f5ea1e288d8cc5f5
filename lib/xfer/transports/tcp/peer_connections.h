// One peer's rails and their connections. Private to tcp/. Each connection pulls what suits its
// rail, keeps several requests in flight, and fences the requests that it abandons.
//
// Fencing: an abandoned read ends with its socket. An abandoned write may be in the owner's socket
// buffer. It is completed only when the owner acknowledged, over another connection, that it
// applies no more bytes of the old one (or is known dead). A cancelled write is completed at once;
// the next write waits for that acknowledgement instead.
//
// Thread: push(), push_awaited(), tick(), ping() from any; each connection has its own thread. A
// connection is used by one thread at a time: its own, or a caller that borrowed it while it idled.
// The caller gives it back idle, or leaves its flights to the connection's thread.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <thread>
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
  // Makes the connections of the rails of the map, or of those outside of it; each has a thread.
  // Errors: kUnavailable, when a rail gets no thread at all.
  Result<> add_connections(bool mapped) MC_EXCLUDES(mutex_);
  // Joins. What is in flight fails, unless the peer was merely replaced: then it is answered first,
  // so that no write is sent again while its first attempt is still under way.
  ~PeerConnections();
  // Takes slices, all reads or all writes. Where their caller waits for them anyway, it carries the
  // short ones over a connection that idles, until `awaited` at most: two threads less to wake.
  // What is not answered by then is left to the connection's thread. Time{}: it does not wait;
  // Time::max(): it waits as long as it takes, and connects if it must.
  void push(std::span<SlicePtr> slices, Time awaited = {});
  std::vector<RailIndex> tick();  // rails to ping
  Time next_check() const { return queue_.next_check(); }
  void ping(RailIndex rail);  // blocks for a moment
  void describe(uint64_t bytes, Path& path) const;
  // Nothing is under way, and no abandoned write is left to be fenced.
  bool idle() const { return queue_.idle() && nothing_given_up(); }

 private:
  struct Flight {  // sent, not answered
    AttemptPtr attempt;
    uint64_t id;
    bool shares = false;  // its frame with other reads
    Link::Asked asked() const { return {attempt.get(), id, shares}; }
  };
  struct Connection {
    Connection(RailIndex r, PeerPtr peer, const AddressPair& route, const Clock& clock,
               Duration timeout)
        : rail(r), link(std::move(peer), route, clock, timeout) {}
    void rest(EndpointPool& pool) const {  // it may be closed while it idles
      if (endpoint != 0) pool.release(endpoint);
    }
    bool still_open(EndpointPool& pool, Time now);  // it rested
    void fill_anew();                               // it is full
    const RailIndex rail;
    bool reserved = false;  // for high-priority work, while there is any
    Link link;
    EndpointPool::Id endpoint = 0;
    Time used{};  // when it was last busy
    uint64_t next_id = 1;
    uint64_t bytes = 0;          // of the flights
    std::deque<Flight> flights;  // answered in order
    // Of small ones, not 0: it was full with so many, is not topped up one by one, and is filled
    // anew once half of them are answered.
    size_t full = 0;
    uint64_t full_bytes = 0;
    std::vector<AttemptPtr> group;           // to be sent together
    std::vector<RailQueue::Ended> answered;  // to be completed together
    // Guarded by mutex_: its thread has work (or is not there yet), or a caller that waits
    // for its slice has taken it.
    bool busy = true, borrowed = false;
    // The caller that borrowed it left its flights to the thread, which has not come for them yet.
    std::atomic<bool> left{false};
    bool shut = false;  // by us, to cancel an attempt: its end is no fault of the rail
  };
  // Enough in flight to hide a round trip, whether slices are large or small.
  static constexpr size_t kFlightsMin = 4, kFlightsMax = 64;
  static constexpr uint64_t kBytesInFlight = 4u << 20;
  static constexpr uint64_t kShort = 64u << 10;  // worth looking again before sleeping

  Connection* borrow(bool connects);
  bool carry_borrowed(Connection& c, Time awaited);
  void give_back(Connection& c);
  void run(Connection& c);
  AttemptPtr wait_for_work(Connection& c);
  AttemptPtr more_work(Connection& c);
  bool has_room(Connection& c) const;
  bool gather(Connection& c, AttemptPtr first);
  void carry(Connection& c, bool by_caller = false);
  Result<> start(Connection& c, bool by_caller);
  Result<> ready(Connection& c, const Stream::GiveUp& give_up);
  void receive(Connection& c);
  Result<size_t> receive_next(Connection& c);
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
  // Connections given up with writes in flight: the owner must be done with them before the next
  // write, or bytes of an abandoned attempt could land on top of it.
  std::deque<Nonce> given_up_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer::tcp
