#include "xfer/transports/rdma/rdma_transport.h"

#include <sched.h>

#include <algorithm>

#include "xfer/core/task.h"
#include "xfer/transports/rdma/peer_connections.h"

namespace mc::xfer::rdma {
namespace {

constexpr size_t kPolled = 32;
constexpr int kLooks = 2000;  // of a caller that waits anyway, before the NIC's thread takes over
constexpr Duration kStep = std::chrono::milliseconds(5), kAfterwards = std::chrono::seconds(1);

}  // namespace

RdmaTransport::RdmaTransport(Sink& sink, std::shared_ptr<Host> host, Metrics& metrics)
    : sink_(sink),
      host_(std::move(host)),
      pool_(host_->config().endpoints, host_->config().eviction),
      owners_(host_->nics().size()),
      made_(metrics.counter("mc_xfer_rdma_connections_total", "queue pairs connected to peers")),
      failed_(metrics.counter("mc_xfer_rdma_failed_connections_total",
                              "queue pairs that could not be connected")),
      endpoints_(metrics.gauge("mc_xfer_rdma_endpoints", "queue pairs held to peers")),
      evicted_(metrics.gauge("mc_xfer_rdma_evicted_endpoints",
                             "queue pairs evicted to make room for others")) {}

Result<> RdmaTransport::start() { return host_->start(*this); }

bool RdmaTransport::reaches(const Peer& peer, uint64_t offset, Op) const {
  if (peer.same_process || peer.descriptor.rdma_control.empty()) return false;
  const BufferInfo* const buffer = peer.find(offset, 0);
  if (buffer == nullptr) return false;
  const auto& nics = peer.descriptor.rdma;
  // A device that was away when the peer described it has keys once it is back.
  for (size_t i = 0; i < buffer->rkeys.size(); ++i)
    if (buffer->rkeys[i] != 0 || (i < nics.size() && nics[i].epoch == 0)) return true;
  return false;
}

Result<PeerConnectionsPtr> RdmaTransport::connections(const PeerPtr& peer) {
  Lock lock(mutex_);
  if (stopping_) return fail(Code::kUnavailable, "shutting down");
  MC_TRY_(still_open(*peer));  // else forget() ran already, and would not run again
  const auto known = by_peer_.find(peer.get());
  if (known != by_peer_.end()) return known->second;
  MC_TRY(auto routes, routes_to(*peer, host_->nics(), host_->tiers()));
  const auto made = std::make_shared<PeerConnections>(*this, peer, std::move(routes), sink_);
  made->start();
  by_peer_.emplace(peer.get(), made);
  return made;
}

std::vector<PeerConnectionsPtr> RdmaTransport::all_connections() const {
  std::vector<PeerConnectionsPtr> out;
  Lock lock(mutex_);
  for (const auto& [peer, each] : by_peer_) out.push_back(each);
  return out;
}

void RdmaTransport::submit(SlicePtr slice) {
  auto to = connections(slice->peer);
  if (!to) {
    sink_.finished(std::move(slice), fail(to.error()));
    return;
  }
  (*to)->push(std::move(slice));
  if (!ticking_.exchange(true)) host_->post([this] { keep_time(); });
}

Transport::InlineResult RdmaTransport::try_inline(const Request& request, const PeerPtr& peer,
                                                  const MemoryLocation& memory,
                                                  const Begin& begin) {
  const auto to = connections(peer);
  if (!to) return InlineResult::kDeclined;
  std::shared_ptr<Task> task;
  const InlineResult now = (*to)->try_inline(request, memory, [&] {
    SlicePtr slice = begin();
    task = slice->task;
    return slice;
  });
  if (task != nullptr) {
    const PeerConnections::Attending here(**to);
    await(*task, **to);
  }
  if (now != InlineResult::kDeclined && !ticking_.exchange(true))
    host_->post([this] { keep_time(); });
  return now;
}

void RdmaTransport::held(PeerConnectionsPtr connections) {
  Lock lock(mutex_);
  held_.push_back(std::move(connections));
  holds_.store(true);
}

void RdmaTransport::flush() {
  if (!holds_.load()) return;
  std::vector<PeerConnectionsPtr> held;
  {
    Lock lock(mutex_);
    held.swap(held_);
    holds_.store(false);
  }
  for (const PeerConnectionsPtr& connections : held) connections->release();
}

void RdmaTransport::await(const Task& task, PeerConnections& connections) {
  for (int i = 0; i < kLooks && task.batch->unfinished.load() > 0; ++i) {
    connections.drain();
    if (i % 64 == 63) ::sched_yield();
  }
}

void RdmaTransport::describe(const PeerPtr& peer, uint64_t bytes, Path& path) const {
  if (!path.usable) return;
  PeerConnectionsPtr known;
  {
    Lock lock(mutex_);
    const auto it = by_peer_.find(peer.get());
    if (it != by_peer_.end()) known = it->second;
  }
  if (known != nullptr) return known->describe(bytes, path);
  const auto routes = routes_to(*peer, host_->nics(), host_->tiers());
  if (!routes) {
    path.usable = false;
    path.why = routes.error().what;
    return;
  }
  RailScheduler none(host_->config().spray);
  for (const NicPair& route : *routes) {
    const RailIndex rail = none.add(route.info);
    path.rails.push_back(none.view(rail, clock().now(), path.memory));
  }
}

void RdmaTransport::forget(const PeerPtr& peer) {
  PeerConnectionsPtr gone;
  {
    Lock lock(mutex_);
    const auto it = by_peer_.find(peer.get());
    if (it == by_peer_.end()) return;
    gone = std::move(it->second);
    by_peer_.erase(it);
  }
  finish({gone});
}

// Attempts in flight fail, unless the peer was merely replaced: then they run to their end.
void RdmaTransport::finish(const std::vector<PeerConnectionsPtr>& gone) {
  for (const PeerConnectionsPtr& connections : gone) connections->close();
  Mutex mutex;
  Condition changed;
  for (const PeerConnectionsPtr& connections : gone) {
    while (!connections->idle()) {
      host_->post([connections] { connections->tick(); });
      Lock lock(mutex);
      changed.wait_for(mutex, kStep);
    }
  }
  size_t left = gone.size();
  for (const PeerConnectionsPtr& connections : gone) {
    const bool posted = host_->post([&, connections] {
      connections->disconnect();
      Lock lock(mutex);
      --left;
      changed.notify_all();
    });
    if (!posted) --left;
  }
  Lock lock(mutex);
  while (left > 0) changed.wait(mutex);
}

void RdmaTransport::stop() {
  std::map<const Peer*, PeerConnectionsPtr> gone;
  {
    Lock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    gone.swap(by_peer_);
  }
  std::vector<PeerConnectionsPtr> all;
  for (auto& [peer, each] : gone) all.push_back(each);
  finish(all);
  host_->silence();
}

// ---- completions

void RdmaTransport::expect(Nic& nic, uint32_t connection, const PeerConnectionsPtr& connections,
                           RailIndex rail) {
  Lock lock(nic.poll_lock());
  owners_[nic.index][connection] = {connections, rail};
}

void RdmaTransport::forget_connection(Nic& nic, uint32_t connection) {
  Lock lock(nic.poll_lock());
  owners_[nic.index].erase(connection);
}

bool RdmaTransport::drain(Nic& nic, bool wait) {
  const DevicePtr device = nic.device();
  if (device == nullptr || (!wait && device->under_way() == 0)) return false;
  Outbox out;
  size_t n = 0;
  if (wait)
    nic.poll_lock().lock();
  else if (!nic.poll_lock().try_lock())
    return false;
  ibv_wc completions[kPolled];
  n = device->poll(completions);
  sort(nic, *device, std::span(completions, n), out);
  nic.poll_lock().unlock();
  tell(out);
  return n > 0;
}

void RdmaTransport::sort(Nic& nic, Device& device, std::span<const ibv_wc> completions,
                         Outbox& out) {
  auto& owners = owners_[nic.index];
  for (const ibv_wc& wc : completions) {
    const auto owner = owners.find(static_cast<uint32_t>(wc.wr_id >> 32));
    if (owner == owners.end()) continue;  // of a connection that was given up
    PeerConnectionsPtr connections = owner->second.connections.lock();
    if (connections == nullptr) continue;
    const RailIndex rail = owner->second.rail;
    connections->completed(rail, wc, out);
    if (out.touched.empty() || out.touched.back().first != connections ||
        out.touched.back().second != rail)
      out.touched.emplace_back(std::move(connections), rail);
  }
  for (const uint32_t connection : device.room().take_waiting()) {
    const auto owner = owners.find(connection);
    if (owner == owners.end()) continue;
    if (PeerConnectionsPtr connections = owner->second.connections.lock())
      out.touched.emplace_back(std::move(connections), owner->second.rail);
  }
}

void RdmaTransport::tell(Outbox& out) {
  for (Outbox::Ended& e : out.ended) e.connections->ended(e.attempt, std::move(e.outcome));
  for (const Outbox::Pinged& p : out.pinged) p.connections->pinged(p.rail, p.took);
  for (const Outbox::Broken& b : out.broken) b.connections->broke(b.rail, b.connection);
  for (const auto& [connections, rail] : out.touched) {
    connections->pump();
    connections->pump_rail(rail);  // releases its connection if no work is left
  }
}

void RdmaTransport::made_connection(bool good) {
  (good ? made_ : failed_).add();
  endpoints_.set(static_cast<double>(pool_.size()));
  evicted_.set(static_cast<double>(pool_.evicted()));
}

void RdmaTransport::release_claimed() {
  for (const PeerConnectionsPtr& connections : all_connections()) connections->release_claimed();
}

// ---- time passes, on the control thread

void RdmaTransport::keep_time() {
  busy_ = clock().now();
  if (timer_ == 0) timer_ = host_->loop().every(kStep, [this] { tick(); });
}

void RdmaTransport::tick() {
  bool any = false;
  for (const PeerConnectionsPtr& connections : all_connections()) {
    if (!connections->wants_tick()) continue;
    any = any || connections->next_check() != Time::max();
    connections->tick();
  }
  const Time now = clock().now();
  if (any) busy_ = now;
  if (now - busy_ < kAfterwards) return;
  host_->loop().cancel(timer_);
  timer_ = 0;
  ticking_.store(false);
  // Work that came just now saw it ticking.
  for (const PeerConnectionsPtr& connections : all_connections())
    if (connections->next_check() != Time::max() && !ticking_.exchange(true)) keep_time();
}

void RdmaTransport::port_changed(Nic& nic, bool up) {
  for (const PeerConnectionsPtr& connections : all_connections())
    connections->port_changed(nic, up);
}
void RdmaTransport::lost(Nic& nic, const char* why) {
  for (const PeerConnectionsPtr& connections : all_connections()) connections->lost(nic, why);
}
void RdmaTransport::back(Nic& nic) {
  for (const PeerConnectionsPtr& connections : all_connections()) connections->back(nic);
}

}  // namespace mc::xfer::rdma
