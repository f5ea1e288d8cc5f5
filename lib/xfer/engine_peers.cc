#include <unistd.h>

#include <algorithm>

#include "rpc/client.h"
#include "rpc/server.h"
#include "xfer/engine_impl.h"
#include "xfer/host.h"

namespace mc::xfer {

SegmentDescriptor Engine::Impl::describe() const {
  SegmentDescriptor d;
  d.node = options.node;
  d.generation = registry->generation();
  d.host_id = host;
  d.pid = static_cast<uint32_t>(::getpid());
  d.uid = ::geteuid();
  if (fd_server != nullptr) d.shm_socket = fd_server->name();
  d.tcp = data;
  d.secret.bytes = secret;
  d.buffers = registry->describe();
  return d;
}

Result<PeerPtr> Engine::Impl::make_peer(const SegmentDescriptor& d) const {
  MC_TRY_(check_node_id(d.node));
  if (d.buffers.size() > kBuffersMax || d.tcp.size() > 64)
    return fail(Code::kInvalid, "segment of %s lists %zu buffers and %zu addresses", d.node.c_str(),
                d.buffers.size(), d.tcp.size());
  for (const BufferInfo& b : d.buffers)
    if (b.bytes > (uint64_t{1} << 48) || b.offset > (uint64_t{1} << 60))
      return fail(Code::kInvalid, "segment of %s lists a buffer beyond all memory", d.node.c_str());
  auto peer = std::make_shared<Peer>();
  peer->descriptor = d;
  const bool here = d.host_id == host && d.uid == ::geteuid();
  peer->same_process = here && d.pid == static_cast<uint32_t>(::getpid()) &&
                       d.secret.bytes == secret;  // two engines in a process are two peers
  peer->same_host = here && !peer->same_process;
  if (peer->same_host) peer->pid = pid_fd(static_cast<pid_t>(d.pid));
  return PeerPtr(peer);
}

Result<SegmentHandle> Engine::Impl::open(const SegmentDescriptor& descriptor,
                                         const std::string& control) {
  MC_TRY(PeerPtr peer, make_peer(descriptor));
  Lock lock(mutex);
  auto known = by_node.find(descriptor.node);
  SegmentHandle handle = 0;
  if (known != by_node.end()) {
    handle = known->second;
    Open& o = segments[handle];
    if (!control.empty()) o.control = control;
    if (o.peer != nullptr && o.peer->descriptor.generation == descriptor.generation &&
        o.peer->descriptor.secret.bytes == descriptor.secret.bytes) {
      if (!control.empty()) by_address[control] = handle;
      return handle;
    }
    if (o.peer != nullptr && o.peer->descriptor.generation > descriptor.generation)
      return fail(Code::kStale, "segment of %s: generation %llu is over", descriptor.node.c_str(),
                  static_cast<unsigned long long>(descriptor.generation.n));
    retire(std::move(o.peer));
    o.peer = std::move(peer);
  } else {
    handle = static_cast<SegmentHandle>(segments.size());
    segments.push_back({std::move(peer), control});
    by_node.emplace(descriptor.node, handle);
  }
  if (!control.empty()) by_address[control] = handle;
  return handle;
}

Result<SegmentDescriptor> Engine::Impl::fetch(const std::string& control, Duration budget) const {
  MC_TRY(auto client, rpc::SyncClient::connect(control, clock));
  return client->call(DescribeSegment{options.node}, budget);
}

Result<SegmentHandle> Engine::Impl::open_by_address(const std::string& control, Duration budget) {
  {
    Lock lock(mutex);
    auto it = by_address.find(control);
    if (it != by_address.end() && segments[it->second].peer != nullptr) return it->second;
  }
  MC_TRY(const SegmentDescriptor d, fetch(control, budget));
  return open(d, control);
}

void Engine::Impl::close(SegmentHandle segment) {
  std::vector<TaskPtr> tasks;
  Lock lock(mutex);
  if (segment == 0 || segment >= segments.size() || segments[segment].peer == nullptr) return;
  retire(std::move(segments[segment].peer));
  segments[segment].peer = nullptr;
}

Result<PeerPtr> Engine::Impl::peer_of(SegmentHandle segment) const {
  if (segment >= segments.size() || segments[segment].peer == nullptr)
    return fail(Code::kNotFound, "segment handle %u is not open", segment);
  return segments[segment].peer;
}

void Engine::Impl::retire(PeerPtr peer) {
  if (peer == nullptr) return;
  errand([this, peer = std::move(peer)] {
    for (auto& t : transports) t->forget(peer);
  });
}

std::vector<Transport*> Engine::Impl::candidates(const Peer& peer, uint64_t offset) const {
  std::vector<Transport*> out;
  for (const auto& t : transports)
    if (t->reaches(peer, offset)) out.push_back(t.get());
  return out;
}

void serve(Engine& engine, rpc::Server& server) {
  server.on<DescribeSegment>(
      [&engine](const DescribeSegment&, const rpc::Call&) -> Result<SegmentDescriptor> {
        return engine.describe();
      });
}

}  // namespace mc::xfer
