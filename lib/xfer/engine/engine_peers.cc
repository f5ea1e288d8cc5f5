#include <unistd.h>

#include <algorithm>

#include "io/address.h"
#include "rpc/client.h"
#include "xfer/core/host.h"
#include "xfer/engine/engine_impl.h"

namespace mc::xfer {
namespace {

bool same_offer(const SegmentDescriptor& a, const SegmentDescriptor& b) {
  return a.generation == b.generation && a.secret.bytes == b.secret.bytes && a.tcp == b.tcp &&
         a.rdma_control == b.rdma_control &&
         std::equal(a.rdma.begin(), a.rdma.end(), b.rdma.begin(), b.rdma.end(),
                    [](const RdmaNic& x, const RdmaNic& y) { return x.epoch == y.epoch; }) &&
         std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    [](const BufferInfo& x, const BufferInfo& y) {
                      return x.offset == y.offset && x.bytes == y.bytes;
                    });
}

// Replaces a wildcard data address of a peer by the host of its control address.
void reachable(std::string& data, const std::string& control) {
  auto d = io::parse_address(data);
  auto c = io::parse_address(control);
  if (!d || !c || (d->host != "0.0.0.0" && d->host != "::")) return;
  d->host = c->host;
  data = d->text();
}

}  // namespace

Result<> Engine::Impl::serve_tcp() {
  MC_TRY(nics, choose_nics(system_nics(), tcp_nics));
  MC_TRY(tcp_server, tcp::Server::open({options.data, secret, options.peer_timeout}, *registry,
                                       clock, metrics));
  for (const io::Address& bound : tcp_server->bound())
    for (Advertised& a : advertise(bound, nics)) {
      data.push_back(std::move(a.address));
      data_nics.push_back(std::move(a.nic));
    }
  return {};
}

SegmentDescriptor Engine::Impl::describe() const {
  SegmentDescriptor d;
  d.node = options.node;
  d.generation = registry->generation();
  d.host_id = host;
  d.pid = static_cast<uint32_t>(::getpid());
  d.uid = ::geteuid();
  if (fd_server != nullptr) d.shm_socket = fd_server->name();
  d.tcp = data;
  d.nics = data_nics;
  d.net_id = net;
  d.secret.bytes = secret;
  if (rdma_offer != nullptr) rdma_offer->describe_nics(d);
  d.buffers = registry->describe();
  if (!options.addresses)
    for (BufferInfo& b : d.buffers) b.base_addr = 0;
  return d;
}

Result<PeerPtr> Engine::Impl::make_peer(SegmentDescriptor d, const std::string& control) const {
  MC_TRY_(check_node_id(d.node));
  if (d.buffers.size() > kBuffersMax || d.tcp.size() > kAddressesMax ||
      d.rdma.size() > kAddressesMax)
    return fail(Code::kInvalid, "segment of %s lists %zu buffers and %zu addresses", d.node.c_str(),
                d.buffers.size(), d.tcp.size());
  std::sort(d.buffers.begin(), d.buffers.end(),
            [](const BufferInfo& a, const BufferInfo& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  for (const BufferInfo& b : d.buffers) {
    if (b.bytes > (uint64_t{1} << 48) || b.offset > (uint64_t{1} << 60) ||
        b.base_addr > UINT64_MAX - b.bytes)
      return fail(Code::kInvalid, "segment of %s lists a buffer beyond all memory", d.node.c_str());
    if (b.offset < end)
      return fail(Code::kInvalid, "segment of %s lists overlapping buffers", d.node.c_str());
    end = b.offset + b.bytes;
  }
  for (std::string& address : d.tcp) reachable(address, control);
  if (!d.rdma_control.empty()) reachable(d.rdma_control, control);
  d.nics.resize(d.tcp.size());
  auto peer = std::make_shared<Peer>();
  const bool here = d.host_id == host && d.uid == ::geteuid();
  peer->same_process = here && d.pid == static_cast<uint32_t>(::getpid()) &&
                       d.secret.bytes == secret;  // two engines in a process are two peers
  peer->same_host = here && !peer->same_process;
  const bool applications = std::ranges::any_of(
      d.buffers, [](const BufferInfo& b) { return b.shm_id == 0 && b.remote_addr != 0; });
  peer->has_pid = peer->same_host && applications && listens_at(d.shm_socket, d.pid);
  peer->same_net = d.net_id.empty() || d.net_id == net;
  peer->instance = instance_of(d.secret.bytes);
  if (peer->same_host) peer->pid = pid_fd(static_cast<pid_t>(d.pid));
  peer->descriptor = std::move(d);
  peer->index_addresses();
  return PeerPtr(peer);
}

// Whether `other` is what the node was before. A smaller generation says so, but of another process
// whose own address has just told it: the clock went back, perhaps, before a restart.
bool Engine::Impl::Open::newer_than(const Peer& other, bool fetched) const {
  if (other.descriptor.generation >= peer->descriptor.generation) return false;
  return !fetched || other.instance == peer->instance;
}

Result<SegmentHandle> Engine::Impl::open(const SegmentDescriptor& descriptor,
                                         const std::string& control) {
  MC_TRY(PeerPtr peer, make_peer(descriptor, control));
  Lock lock(mutex);
  auto known = by_node.find(descriptor.node);
  SegmentHandle handle = 0;
  if (known != by_node.end()) {
    handle = known->second;
    Open& o = segments[handle];
    if (!control.empty()) o.control = control;
    if (!control.empty()) by_address[control] = handle;
    if (o.peer != nullptr && same_offer(o.peer->descriptor, peer->descriptor)) return handle;
    if (o.peer != nullptr && o.newer_than(*peer, !control.empty()))
      return fail(Code::kStale, "segment of %s: generation %llu is stale, a newer one is open",
                  descriptor.node.c_str(),
                  static_cast<unsigned long long>(descriptor.generation.n));
    retire(std::move(o.peer), PeerState::kReplaced);
    o.peer = std::move(peer);
    o.forgotten = false;
  } else {
    // A process of this host that ended leaves its memory mapped here, which the kernel cannot
    // free. It may come back under its name, and its place is kept; the new one may be in its
    // place.
    for (Open& o : segments) {
      if (o.peer == nullptr || o.forgotten || !o.peer->pid || process_alive(o.peer->pid)) continue;
      o.forgotten = true;
      defer([this, ended = o.peer] {
        for (auto& t : transports) t->forget(ended);
      });
    }
    handle = static_cast<SegmentHandle>(segments.size());
    segments.push_back({std::move(peer), control, {}});
    by_node.emplace(descriptor.node, handle);
    if (!control.empty()) by_address[control] = handle;
  }
  return handle;
}

Result<SegmentDescriptor> Engine::Impl::fetch(const std::string& control, Duration budget) const {
  MC_TRY(auto client, rpc::SyncClient::connect(control, clock));
  return client->call(DescribeSegment{options.node}, budget);
}

// An address outlives its process: another process may answer at it now, or the node may have moved
// to another address.
Result<SegmentHandle> Engine::Impl::open_by_address(const std::string& control, Duration budget,
                                                    Generation expected) {
  {
    Lock lock(mutex);
    const auto it = by_address.find(control);
    if (it != by_address.end()) {
      const Open& o = segments[it->second];
      if (o.peer != nullptr && o.control == control &&
          (!expected || o.peer->descriptor.generation == expected))
        return it->second;
    }
  }
  MC_TRY(const SegmentDescriptor d, fetch(control, budget));
  if (expected && d.generation != expected)
    return fail(Code::kStale,
                "segment at %s: another process answers there: generation %llu, not %llu",
                control.c_str(), static_cast<unsigned long long>(d.generation.n),
                static_cast<unsigned long long>(expected.n));
  return open(d, control);
}

void Engine::Impl::close(SegmentHandle segment) {
  Lock lock(mutex);
  if (segment == 0 || segment >= segments.size() || segments[segment].peer == nullptr) return;
  retire(std::move(segments[segment].peer), PeerState::kClosed);
  segments[segment].peer = nullptr;
}

Result<PeerPtr> Engine::Impl::peer_of(SegmentHandle segment) {
  if (segment == 0 && self_version != registry->version()) {  // our own buffers change
    self_version = registry->version();
    MC_TRY(segments[0].peer, make_peer(describe()));
  }
  if (segment >= segments.size() || segments[segment].peer == nullptr)
    return fail(Code::kNotFound, "segment handle %u is not open", segment);
  return segments[segment].peer;
}

void Engine::Impl::retire(PeerPtr peer, PeerState state) {
  if (peer == nullptr) return;
  peer->state.store(state, std::memory_order_release);
  defer([this, peer = std::move(peer)] {
    for (auto& t : transports) t->forget(peer);
  });
}

// Takes a slice to retry it with a newer descriptor, once per slice: its segment has a newer
// generation, lacks the range, or its process is gone. False: no newer descriptor is possible. A
// stale guard is not such a case: the new descriptor has the old generation, and the slice fails.
bool Engine::Impl::refresh(SlicePtr& slice, const Error& why) {
  const SegmentHandle segment = slice->task->segment;
  std::string control;
  {
    Lock lock(mutex);
    if (stopping || segment == 0 || segment >= segments.size() || slice->refreshed) return false;
    const Open& o = segments[segment];
    if (o.peer == nullptr || (o.peer == slice->peer && o.control.empty())) return false;
    if (o.peer == slice->peer && clock.now() < o.silent_until) return false;
    if (o.peer == slice->peer) control = o.control;
  }
  slice->refreshed = true;
  slice->awaited = slice->more_follow = false;
  refresher.wait(segment, control, {std::move(slice), why});
  return true;
}

DescriptorRefresher::Hooks Engine::Impl::refresher_hooks() {
  DescriptorRefresher::Hooks hooks;
  hooks.open = [this](const SegmentDescriptor& descriptor, const std::string& control) {
    const auto opened = open(descriptor, control);
    return opened ? Result<>() : Result<>(fail(opened.error()));
  };
  hooks.give_up = [this](SlicePtr slice, Error why) {
    complete(std::move(slice), fail(std::move(why)));
  };
  const auto resume = [this](SlicePtr slice, const Error& why, const PeerPtr& newest,
                             const Result<>& outcome) {
    const Piece& p = slice->piece;
    const Peer& peer = *slice->peer;
    const uint64_t span = span_of(p.bytes, p.rows, p.remote_stride);
    if (newest != nullptr && newest != slice->peer) {
      const bool withdrawn = why.code == Code::kStale && newest->find(p.remote, span) == nullptr;
      if (withdrawn)  // its offsets are not given to other memory
        return complete(std::move(slice), fail(why));
      slice->peer = newest;
      slice->tried_transports = 0;
      return dispatch(std::move(slice));
    }
    if (why.code != Code::kStale && why.code != Code::kInvalid)
      return complete(std::move(slice), fail(why));
    const auto in_range = peer.buffer(p.remote, span);
    Result<> ended = outcome;
    if (ended && !in_range) ended = fail(in_range.error());
    if (ended)
      ended = fail(Code::kStale, "the bytes at %llu of %s have another owner now",
                   static_cast<unsigned long long>(p.remote), peer.descriptor.node.c_str());
    complete(std::move(slice), ended);
  };
  hooks.over = [this, resume](SegmentHandle segment,
                              std::vector<DescriptorRefresher::Waiting> waiting,
                              const Result<>& outcome) {
    PeerPtr newest;
    {
      Lock lock(mutex);
      Open& o = segments[segment];
      if (!outcome) o.silent_until = clock.now() + DescriptorRefresher::kBudget;
      newest = o.peer;
    }
    for (auto& [slice, why] : waiting) resume(std::move(slice), why, newest, outcome);
  };
  return hooks;
}

Transport* Engine::Impl::next_transport(Slice& slice) const {
  for (uint32_t i = 0; i < transports.size(); ++i) {
    const uint32_t bit = 1u << i;
    if ((slice.tried_transports & bit) != 0 ||
        !transports[i]->reaches(*slice.peer, slice.piece.remote, slice.op) ||
        (slice.device != nullptr && !transports[i]->takes(*slice.device)))
      continue;
    slice.tried_transports |= bit;
    slice.transport = i;
    return transports[i].get();
  }
  return nullptr;
}

Result<uint64_t> Engine::segment_offset(SegmentHandle segment, uint64_t address, uint64_t bytes) {
  PeerPtr peer;
  std::string control;
  const auto look = [&]() -> Result<> {
    Lock lock(impl_->mutex);
    MC_TRY(peer, impl_->peer_of(segment));
    control = impl_->segments[segment].control;
    return {};
  };
  MC_TRY_(look());
  auto found = peer->offset_at(address, bytes);
  if (found || found.error().code != Code::kNotFound || control.empty()) return found;
  MC_TRY(const SegmentDescriptor d, impl_->fetch(control, DescriptorRefresher::kBudget));
  MC_TRY_(impl_->open(d, control));
  MC_TRY_(look());
  return peer->offset_at(address, bytes);
}

}  // namespace mc::xfer
