#include <unistd.h>

#include "xfer/engine/engine_impl.h"

namespace mc::xfer {
namespace {

std::string reason(const Peer& peer, const BufferInfo& buffer, const std::string& transport,
                   bool usable) {
  if (peer.same_process) return usable ? "the same process" : "not needed within a process";
  if (buffer.is_file() != (transport == "file") && transport != "tcp")
    return buffer.is_file() ? "it is a file" : "it is not a file";
  if (transport == "file")
    return usable ? "the same host; its file is opened here" : "its file cannot be opened here";
  if (transport == "shm") {
    if (!peer.same_host)
      return peer.descriptor.uid != ::geteuid() ? "another user, or another host" : "another host";
    if (buffer.shm_id == 0)
      return usable ? "the same host; memory of the application, through the kernel"
                    : "memory of the application: not offered, or tcp writes it";
    return usable ? "the same host; memory of the engine, mapped" : "its memory was refused";
  }
  if (transport == "rdma")
    return usable ? "its RDMA devices have that memory registered"
                  : "it has no RDMA device with that memory registered";
  if (transport == "tcp")
    return usable ? "it offers data addresses" : "it offers no data address that is reached";
  return usable ? "it reaches that memory" : "it does not reach that memory";
}

// Devices that rdma does not use, and why not.
void add_left_out(std::vector<Path>& paths) {
  std::string why;
  for (const rdma::DeviceLeftOut& device : rdma::devices_left_out())
    why += (why.empty() ? "" : "; ") + device.name + " is left out: " + device.why;
  if (why.empty()) return;
  for (Path& p : paths) {
    if (p.transport != "rdma") continue;
    p.why += "; " + why;
    return;
  }
  Path none;
  none.transport = "rdma";
  none.why = std::move(why);
  paths.push_back(std::move(none));
}

}  // namespace

Result<std::vector<Path>> Engine::paths(SegmentHandle segment, uint64_t offset, Op op,
                                        uint64_t bytes, const void* local) const {
  PeerPtr peer;
  {
    Lock lock(impl_->mutex);
    MC_TRY(peer, impl_->peer_of(segment));
  }
  MC_TRY(const BufferInfo* buffer, peer->buffer(offset, bytes));
  std::vector<Path> out;
  bool chosen = false;
  for (const auto& t : impl_->transports) {
    Path p;
    p.transport = t->name();
    p.usable = t->reaches(*peer, offset, op);
    p.why = reason(*peer, *buffer, p.transport, p.usable);
    p.memory = {impl_->location_of(static_cast<const std::byte*>(local)), peer->memory_at(offset)};
    t->describe(peer, bytes, p);
    p.chosen = p.usable && !chosen;
    chosen = chosen || p.chosen;
    out.push_back(std::move(p));
  }
  if (impl_->allowed("rdma")) add_left_out(out);
  return out;
}

}  // namespace mc::xfer
