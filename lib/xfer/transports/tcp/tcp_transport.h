// The requester's side of tcp. Each peer has a few kept connections per rail. Each connection has
// a thread that pulls the next slice when its rail has room (so a slow rail takes less) and keeps
// several in flight. RailQueue decides which rail takes what, hedges, retries and fences.
//
// Connections are made on demand, kept, evicted when there are too many, and made again after a
// failure; an idle one causes no wake-ups. Those of a peer that was not used for ten minutes end,
// with their threads, while others are used. Thread: any; the connections' threads, a timer and a
// pinger of resting rails are its own.
#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "xfer/core/transport.h"
#include "xfer/qos/nic_inflight.h"
#include "xfer/rails/endpoint_pool.h"
#include "xfer/rails/pairing.h"
#include "xfer/rails/rail_scheduler.h"

namespace mc::xfer::tcp {

class TcpTransport final : public Transport {
 public:
  struct Config {
    uint32_t connections = 2;  // a rail
    uint32_t endpoints = 256;  // connections to all peers
    Duration peer_timeout = std::chrono::seconds(3);
    std::vector<Nic> nics{};  // of this machine that may be used
    SprayConfig spray{};
    NicInflight* nic_inflight = nullptr;
  };
  static constexpr Duration kPingTime = std::chrono::milliseconds(200);

  TcpTransport(Sink& sink, const Clock& clock, Config config);
  ~TcpTransport() override;
  const char* name() const override { return "tcp"; }
  bool reaches(const Peer& peer, uint64_t offset, Op op) const override;
  // Rails that were not used yet are shown as what they would be: nothing is known of them.
  void describe(const PeerPtr& peer, uint64_t bytes, Path& path) const override;
  void submit(SlicePtr slice) override;
  void submit_awaited(std::span<SlicePtr> slices, Time until) override;
  void forget(const PeerPtr& peer) override;
  void stop() override;

  size_t endpoints() const;  // connections held

 private:
  class PeerConnections;  // to one peer
  struct Known {
    std::shared_ptr<PeerConnections> connections;
    Time used{};
  };
  Result<std::shared_ptr<PeerConnections>> connections(const PeerPtr& peer);
  std::shared_ptr<PeerConnections> known_lane(const PeerPtr& peer) const;
  std::vector<std::shared_ptr<PeerConnections>> take_unused(Time now) MC_REQUIRES(mutex_);
  void keep_time();
  void keep_pinging();
  void wake_timer();

  Sink& sink_;
  const Clock& clock_;
  const Config config_;
  const std::unique_ptr<EndpointPool> pool_;
  mutable Mutex mutex_;
  Condition changed_, pings_changed_;
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::atomic<bool> asleep_{false};  // the timer
  std::map<const Peer*, Known> by_peer_ MC_GUARDED_BY(mutex_);
  std::deque<std::pair<std::shared_ptr<PeerConnections>, RailIndex>> pings_ MC_GUARDED_BY(mutex_);
  std::thread timer_, pinger_;
};

}  // namespace mc::xfer::tcp
