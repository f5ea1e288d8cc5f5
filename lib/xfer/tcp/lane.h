// One peer's queue of slices and the connections that serve it. Private to tcp/.
//
// Thread: push() from any; each connection's thread is the lane's own.
#pragma once
#include <deque>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "xfer/tcp/frame.h"
#include "xfer/tcp/stream.h"
#include "xfer/tcp/transport.h"

namespace mc::xfer::tcp {

class TcpTransport::Lane {
 public:
  Lane(PeerPtr peer, Sink& sink, const Clock& clock, uint32_t connections, Duration peer_timeout);
  ~Lane();  // fails what is queued as kUnavailable, joins
  void push(SlicePtr slice);

 private:
  struct Flight {  // sent, not answered
    SlicePtr slice;
    uint64_t id;
  };
  struct Connection {
    Stream stream;
    uint64_t next_id = 1;
    std::deque<Flight> flights;  // answered in order
  };
  static constexpr size_t kFlightsMax = 4;

  void run();
  SlicePtr pop(bool wait, const Connection& c);
  Result<> open(Stream& stream, const Stream::GiveUp& give_up);
  Result<> send(Connection& c, SlicePtr slice);
  Result<> receive(Connection& c);
  Result<> receive_reply(Stream& stream, uint64_t id, const Stream::GiveUp& give_up,
                         Result<>* outcome);
  void drop(Connection& c, const Error& why);
  Stream::GiveUp watch(const Slice& slice);
  bool stopping();

  const PeerPtr peer_;
  Sink& sink_;
  const Clock& clock_;
  const Duration peer_timeout_;
  Mutex mutex_;
  Condition changed_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::deque<SlicePtr> queue_ MC_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace mc::xfer::tcp
