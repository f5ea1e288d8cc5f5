// The requester's side of tcp: a few kept connections per peer, each with a thread that pulls the
// next slice when it has room (so a slow connection takes less) and keeps several in flight.
//
// Thread: any; the connection threads are its own. Connections are made on demand, kept, and made
// again after a failure; an idle one waits without waking.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "xfer/rail/pairing.h"
#include "xfer/tcp/stream.h"
#include "xfer/transport.h"

namespace mc::xfer::tcp {

class TcpTransport final : public Transport {
 public:
  struct Config {
    uint32_t connections = 2;  // a rail
    Duration peer_timeout = std::chrono::seconds(3);
    std::vector<Nic> nics;  // of this machine that may be used
  };
  TcpTransport(Sink& sink, const Clock& clock, Config config);
  ~TcpTransport() override { stop(); }
  const char* name() const override { return "tcp"; }
  bool reaches(const Peer& peer, uint64_t offset, Op op) const override;
  void submit(SlicePtr slice) override;
  void forget(const PeerPtr& peer) override;
  void stop() override;

 private:
  class Lane;  // of one peer: a queue and its connections
  Result<std::shared_ptr<Lane>> lane(const PeerPtr& peer);

  Sink& sink_;
  const Clock& clock_;
  const Config config_;
  Mutex mutex_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::map<const Peer*, std::shared_ptr<Lane>> lanes_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer::tcp
