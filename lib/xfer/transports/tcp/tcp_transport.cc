#include "xfer/transports/tcp/tcp_transport.h"

#include <algorithm>

#include "xfer/transports/tcp/peer_connections.h"

namespace mc::xfer::tcp {
namespace {
// While there is work the timer looks this often. It goes to sleep some time after the last, so
// that requests that follow each other do not wake it each time, and rare ones do not keep it
// awake.
constexpr Duration kStep = std::chrono::milliseconds(5), kAfterwards = 2 * kStep;
constexpr Duration kUnused = std::chrono::minutes(10), kLook = std::chrono::seconds(10);
}  // namespace

TcpTransport::TcpTransport(Sink& sink, const Clock& clock, Config config)
    : sink_(sink),
      clock_(clock),
      config_(std::move(config)),
      pool_(std::make_unique<EndpointPool>(config_.endpoints)) {
  try {
    timer_ = std::thread([this] { keep_time(); });
    pinger_ = std::thread([this] { keep_pinging(); });
  } catch (...) {
    stop();
    throw;
  }
}

TcpTransport::~TcpTransport() { stop(); }

bool TcpTransport::reaches(const Peer& peer, uint64_t, Op) const {
  return !peer.same_process && !peer.descriptor.tcp.empty();
}

Result<std::shared_ptr<TcpTransport::PeerConnections>> TcpTransport::connections(
    const PeerPtr& peer) {
  Lock lock(mutex_);
  if (stopping_) return fail(Code::kUnavailable, "shutting down");
  MC_TRY_(still_open(*peer));  // else forget() ran already, and would not run again
  auto& [known, used] = by_peer_[peer.get()];
  used = clock_.now();
  if (known == nullptr) {
    auto routes = routes_to(*peer, config_.nics);
    if (!routes) {
      by_peer_.erase(peer.get());
      return fail(routes.error());
    }
    known =
        std::make_shared<PeerConnections>(peer, std::move(*routes), sink_, clock_, config_, *pool_);
    if (auto added = known->add_connections(true); !added) {
      by_peer_.erase(peer.get());  // joins the threads of the rails that have some
      return fail(Code::kUnavailable, "connect to %s: %s", peer->descriptor.node.c_str(),
                  added.error().what.c_str());
    }
  }
  return known;
}

void TcpTransport::submit(SlicePtr slice) {
  if (auto to = connections(slice->peer)) {
    // The timer hedges meanwhile what a caller carries itself, where there may be two rails.
    if (slice->awaited && slice->peer->descriptor.tcp.size() > 1 &&
        asleep_.load(std::memory_order_acquire))
      wake_timer();
    (*to)->push({&slice, 1}, slice->awaited ? Time::max() : Time{});
    if (asleep_.load(std::memory_order_acquire)) wake_timer();
  } else {
    sink_.finished(std::move(slice), fail(to.error()));
  }
}

void TcpTransport::submit_awaited(std::span<SlicePtr> slices, Time until) {
  if (slices.empty()) return;
  if (auto to = connections(slices.front()->peer)) {
    (*to)->push(slices, until);
    if (asleep_.load(std::memory_order_acquire)) wake_timer();
  } else {
    for (SlicePtr& slice : slices) sink_.finished(std::move(slice), fail(to.error()));
  }
}

void TcpTransport::forget(const PeerPtr& peer) {
  std::shared_ptr<PeerConnections> gone;  // its threads are joined here, outside the lock
  Lock lock(mutex_);
  auto it = by_peer_.find(peer.get());
  if (it == by_peer_.end()) return;
  gone = std::move(it->second.connections);
  by_peer_.erase(it);
}

// Their threads are joined when the caller, which is none of these, drops them outside the lock.
// Peers of other hosts come and go, and nobody says that one will not come back.
std::vector<std::shared_ptr<TcpTransport::PeerConnections>> TcpTransport::take_unused(Time now) {
  std::vector<std::shared_ptr<PeerConnections>> out;
  for (auto it = by_peer_.begin(); it != by_peer_.end();) {
    Known& known = it->second;
    // Others got theirs under the lock, so that none can come by it meanwhile.
    const bool held = known.connections.use_count() > 1;
    if (!held && !known.connections->idle()) known.used = now;
    const bool unused = !held && now - known.used >= kUnused;
    if (unused) out.push_back(std::move(known.connections));
    it = unused ? by_peer_.erase(it) : std::next(it);
  }
  return out;
}

void TcpTransport::stop() {
  std::map<const Peer*, Known> gone;
  {
    Lock lock(mutex_);
    stopping_ = true;
    gone.swap(by_peer_);
    pings_.clear();
  }
  changed_.notify_all();
  pings_changed_.notify_all();
  if (timer_.joinable()) timer_.join();
  if (pinger_.joinable()) pinger_.join();
}

std::shared_ptr<TcpTransport::PeerConnections> TcpTransport::known_lane(const PeerPtr& peer) const {
  Lock lock(mutex_);
  const auto it = by_peer_.find(peer.get());
  return it == by_peer_.end() ? nullptr : it->second.connections;
}

void TcpTransport::describe(const PeerPtr& peer, uint64_t bytes, Path& path) const {
  if (!path.usable) return;
  if (const auto known = known_lane(peer)) return known->describe(bytes, path);
  const auto routes = routes_to(*peer, config_.nics);
  if (!routes) {
    path.usable = false;
    path.why = routes.error().what;
    return;
  }
  RailScheduler none(config_.spray);
  for (const AddressPair& route : *routes) {
    const RailIndex rail = none.add(route.info);
    path.rails.push_back(none.view(rail, clock_.now(), path.memory));
  }
}

size_t TcpTransport::endpoints() const { return pool_->size(); }

// ---- time passes

void TcpTransport::wake_timer() {
  {
    Lock lock(mutex_);
    asleep_.store(false, std::memory_order_release);
  }
  changed_.notify_all();
}

void TcpTransport::keep_time() {
  Time busy = clock_.now(), look = busy;
  for (;;) {
    std::vector<std::shared_ptr<PeerConnections>> all_connections, unused;
    {
      Lock lock(mutex_);
      if (stopping_) return;
      if (clock_.now() >= look) {
        unused = take_unused(clock_.now());
        look = clock_.now() + kLook;
      }
      for (auto& [peer, known] : by_peer_) all_connections.push_back(known.connections);
    }
    unused.clear();
    Time next = Time::max();
    for (auto& each : all_connections) {
      next = std::min(next, each->next_check());
      for (const RailIndex rail : each->tick()) {
        Lock lock(mutex_);
        pings_.emplace_back(each, rail);
        pings_changed_.notify_all();
      }
    }
    all_connections.clear();
    const Time now = clock_.now();
    if (next != Time::max()) busy = now;
    Lock lock(mutex_);
    if (stopping_) return;
    if (now - busy < kAfterwards) {
      asleep_.store(false);
      changed_.wait_for(mutex_, kStep);
      continue;
    }
    if (!asleep_.exchange(true)) continue;  // looks once more: what comes from now on wakes it
    while (asleep_.load() && !stopping_) changed_.wait(mutex_);
    busy = clock_.now();
  }
}

void TcpTransport::keep_pinging() {
  for (;;) {
    std::pair<std::shared_ptr<PeerConnections>, RailIndex> next;
    {
      Lock lock(mutex_);
      while (pings_.empty() && !stopping_) pings_changed_.wait(mutex_);
      if (stopping_) return;
      next = std::move(pings_.front());
      pings_.pop_front();
    }
    next.first->ping(next.second);
  }
}

}  // namespace mc::xfer::tcp
