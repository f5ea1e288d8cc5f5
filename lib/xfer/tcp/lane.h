// One peer's queue of slices and the connections that serve it. Private to tcp/.
//
// Thread: push() from any; each connection's thread is the lane's own.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "xfer/tcp/link.h"
#include "xfer/tcp/transport.h"

namespace mc::xfer::tcp {

class TcpTransport::Lane {
 public:
  Lane(PeerPtr peer, Sink& sink, const Clock& clock, uint32_t connections, Duration peer_timeout,
       const std::vector<Nic>& nics);
  // Joins. What is in flight fails, unless the peer was merely replaced: then it is answered first,
  // so that no write is sent again while its first attempt is still under way.
  ~Lane();
  // A short slice whose caller waits for it anyway is carried on the caller's thread, if a
  // connection idles: two threads less to wake.
  void push(SlicePtr slice);

 private:
  struct Flight {  // sent, not answered
    SlicePtr slice;
    uint64_t id;
  };
  struct Connection {
    std::unique_ptr<Link> link;  // null: to be made when there is work
    Time used{};                 // when it was last busy
    // Of the lane's mutex: its thread has work, or a caller that waits for its slice has taken it.
    bool busy = false, borrowed = false;
    uint64_t next_id = 1;
    uint64_t bytes = 0;          // of the flights
    std::deque<Flight> flights;  // answered in order
  };
  // Enough in flight to hide a round trip, whether slices are large or small.
  static constexpr size_t kFlightsMin = 4, kFlightsMax = 64;
  static constexpr uint64_t kBytesInFlight = 4u << 20;
  static constexpr uint64_t kShort = 64u << 10;  // worth looking again before sleeping
  static constexpr Duration kFresh = std::chrono::milliseconds(1);
  static constexpr uint32_t kResendsMax = 2;
  static constexpr size_t kGivenUpMax = 64;

  bool run_here(SlicePtr& slice);
  void run(Connection& c);
  Result<> start(Connection& c, SlicePtr slice);
  void carry(Connection& c, SlicePtr slice);
  SlicePtr pop(bool wait, Connection& c);
  Result<> open(Connection& c, const Stream::GiveUp& give_up);
  Result<> retire_others(Connection& c, const Stream::GiveUp& give_up);
  Result<> receive(Connection& c);
  void drop(Connection& c, const Error& why);
  Stream::GiveUp watch(const Connection& c);
  Result<> over(const Slice& slice) const;  // an error when it is cancelled, late or pointless
  void sweep();                             // gives back what is queued and over

  const PeerPtr peer_;
  Sink& sink_;
  const Clock& clock_;
  const Duration peer_timeout_;
  const std::vector<Nic>& nics_;
  Mutex mutex_;
  Condition changed_;
  std::atomic<bool> stopping_{false};
  bool draining_ MC_GUARDED_BY(mutex_) = false;
  std::deque<SlicePtr> queue_ MC_GUARDED_BY(mutex_);
  // Connections given up with writes in flight: the owner must be done with them before the next
  // write, or bytes of an abandoned attempt could land on top of it.
  std::deque<Nonce> given_up_ MC_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::thread> threads_;  // one each
};

}  // namespace mc::xfer::tcp
