// Registers and allocates device memory, and opens the device memory of peers on this host.
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "xfer/engine/engine_impl.h"

namespace mc::xfer {
namespace {

// Copies to and from device memory of a peer. The owner keeps a word in its memory while it offers
// the range; this reads the word before and after each copy.
class PeerBackend final : public DeviceBackend {
 public:
  PeerBackend(MemoryKindPtr kind, device::Memory memory, const PeerPtr& peer,
              const BufferInfo& info)
      : DeviceBackend(std::move(kind), memory.data(), memory.owner),
        peer_(peer),
        alive_addr_(info.alive_addr),
        alive_(info.alive) {}
  Result<> read(uint64_t at, std::span<std::byte> to) override {
    return guarded([&] { return DeviceBackend::read(at, to); });
  }
  Result<> write(uint64_t at, std::span<const std::byte> from) override {
    return guarded([&] { return DeviceBackend::write(at, from); });
  }
  Result<> move(const CopyDescriptor& move) override {
    return guarded([&] { return DeviceBackend::move(move); });
  }

 private:
  template <class Copy>
  Result<> guarded(const Copy& copy) const {
    MC_TRY_(offered());
    MC_TRY_(copy());
    return offered();
  }
  Result<> offered() const {
    const auto peer = peer_.lock();
    if (peer == nullptr) return fail(Code::kUnavailable, "the segment was closed");
    const char* const node = peer->descriptor.node.c_str();
    MC_TRY_(still_open(*peer));
    uint64_t seen = 0;
    const iovec to{&seen, sizeof seen};
    const iovec from{reinterpret_cast<void*>(alive_addr_), sizeof seen};
    const auto pid = static_cast<pid_t>(peer->descriptor.pid);
    if (::process_vm_readv(pid, &to, 1, &from, 1, 0) != static_cast<ssize_t>(sizeof seen))
      return fail(Code::kUnavailable, "cannot check that %s still offers its device memory: %s",
                  node, std::strerror(errno));
    if (seen != alive_) return fail(Code::kStale, "%s withdrew its device memory", node);
    return {};
  }
  const std::weak_ptr<const Peer> peer_;
  const uint64_t alive_addr_, alive_;
};

std::string kind_name(const std::string& location) {
  return location.substr(0, location.find(':'));
}

// Pins host memory that the engine allocated, as long as it is mapped. Without it a driver copies
// through pinned memory of its own, on one CPU. Memory of the application is not pinned: drivers
// refuse copies that go past what of it is pinned, and it may be freed at any time.
BufferPtr pinned_for(const std::map<std::string, MemoryKindPtr>& kinds, BufferPtr buffer) {
  for (const auto& [name, kind] : kinds) {
    auto held = kind->pin({buffer->data, buffer->bytes});
    if (held)
      buffer->pinned.push_back(std::move(*held));
    else
      log_debug("xfer", "host memory is not pinned, so copies of %s are slower: %s", name.c_str(),
                held.error().what.c_str());
  }
  return buffer;
}

}  // namespace

Result<> Engine::Impl::add_kind(const std::string& name, MemoryKindPtr kind) {
  if (name.empty() || name == "*" || name == "cpu" || name.find(':') != std::string::npos)
    return fail(Code::kInvalid, "memory kind '%s': want the name of a device, such as cuda",
                escape(name).c_str());
  {
    Lock lock(kinds_mutex);
    if (!kinds.emplace(name, kind).second)
      return fail(Code::kInvalid, "memory kind '%s' is known already", name.c_str());
  }
  if (kind->moves()) staging.stage_for(*kind);
  knows_kinds.store(true, std::memory_order_release);
  return {};
}

MemoryKindPtr Engine::Impl::kind_of(const std::string& location) const {
  Lock lock(kinds_mutex);
  const auto known = kinds.find(kind_name(location));
  return known == kinds.end() ? nullptr : known->second;
}

// Returns: a handle for processes of this host; empty if shm is not allowed or the device has none.
std::string Engine::Impl::offer_of(MemoryKind& kind, std::span<std::byte> memory) const {
  if (!allowed("shm")) return {};
  auto handle = kind.share(memory);
  if (handle) return std::move(*handle);
  log_debug("xfer", "device memory cannot be shared, peers reach it through this process: %s",
            handle.error().what.c_str());
  return {};
}

MemoryLocation Engine::Impl::device_location(const MemoryKind& kind,
                                             const std::string& location) const {
  return rdma_offer == nullptr ? MemoryLocation{} : rdma_offer->location_of_gpu(kind.pci(location));
}

MemoryLocation Engine::Impl::location_of(const std::byte* local) const {
  if (local != nullptr && registry->has_devices())
    if (const auto device = registry->pin_device(local, 1); device && *device != nullptr)
      return (*device)->memory_location;
  return host_location(local);
}

Result<BufferPtr> Engine::Impl::allocate(uint64_t bytes, bool writable, std::string location) {
  const MemoryKindPtr kind = kind_of(location);
  if (kind == nullptr) {
    MC_TRY(BufferPtr buffer, registry->allocate(bytes, writable, std::move(location)));
    std::map<std::string, MemoryKindPtr> all;
    {
      Lock lock(kinds_mutex);
      all = kinds;
    }
    return pinned_for(all, std::move(buffer));
  }
  MC_TRY(device::Memory memory, kind->allocate(location, bytes));
  auto backend = std::make_shared<DeviceBackend>(kind, memory.data(), memory.owner);
  std::string handle = offer_of(*kind, memory.bytes);
  const MemoryLocation memory_location = device_location(*kind, location);
  MC_TRY(BufferPtr buffer,
         registry->add(backend, memory.data(), bytes, writable, std::move(location),
                       {handle, !handle.empty(), memory_location}));
  if (handle.empty()) return buffer;
  Lock lock(kinds_mutex);
  shared_out.push_back(std::move(memory));
  return buffer;
}

Result<BufferPtr> Engine::Impl::add_buffer(std::span<std::byte> memory, bool writable,
                                           std::string location) {
  MemoryKindPtr kind = kind_of(location);
  if (location == "*" && !memory.empty() && knows_kinds.load(std::memory_order_acquire)) {
    std::map<std::string, MemoryKindPtr> all;
    {
      Lock lock(kinds_mutex);
      all = kinds;
    }
    for (const auto& [name, candidate] : all) {
      if (auto found = candidate->locate(memory)) {
        kind = candidate;
        location = *found;
      } else if (found.error().code == Code::kUnavailable || candidate->locate(memory.first(1))) {
        return fail(found.error());  // a lost device's, or past the end of its allocation
      }
    }
  } else if (kind != nullptr) {
    const auto found = kind->locate(memory);
    if (!found && found.error().code != Code::kUnsupported) return fail(found.error());
    if (found && *found != location)
      return fail(Code::kInvalid, "memory of %s cannot be registered as %s", found->c_str(),
                  location.c_str());
  }
  if (kind == nullptr) return registry->add(memory, writable, std::move(location));
  // The application may free it as soon as it is withdrawn, so peers write only through its owner.
  std::string handle = offer_of(*kind, memory);
  const MemoryLocation memory_location = device_location(*kind, location);
  return registry->add(std::make_shared<DeviceBackend>(kind, memory.data()), memory.data(),
                       memory.size(), writable, std::move(location),
                       {std::move(handle), false, memory_location});
}

// Opens the device memory of a peer once and keeps it while the peer is open.
BufferPtr Engine::Impl::shared_by(const PeerPtr& peer, const BufferInfo& info) {
  const MemoryKindPtr kind = kind_of(info.location);
  if (kind == nullptr || info.alive_addr == 0) return nullptr;
  const std::pair key{peer.get(), info.offset};
  {
    Lock lock(kinds_mutex);
    const auto known = shared.find(key);
    if (known != shared.end() && !known->second.peer.expired()) return known->second.buffer;
  }
  BufferPtr buffer;
  auto memory = kind->open(info.location, info.device_handle.bytes);
  if (memory && memory->size() != info.bytes)
    memory = fail(Code::kCorrupt, "the handle opens %zu bytes, the descriptor says %llu",
                  memory->size(), static_cast<unsigned long long>(info.bytes));
  if (memory) {
    buffer = std::make_shared<Buffer>();
    buffer->data = memory->data();
    buffer->bytes = info.bytes;
    buffer->offset = info.offset;
    buffer->writable = info.writable;
    buffer->location = info.location;
    buffer->backend = std::make_shared<PeerBackend>(kind, std::move(*memory), peer, info);
  } else {
    log_info("xfer", "cannot open the device memory of %s, it copies the bytes itself: %s",
             peer->descriptor.node.c_str(), memory.error().what.c_str());
  }
  Lock lock(kinds_mutex);
  std::erase_if(shared, [](const auto& entry) { return entry.second.peer.expired(); });
  return shared.insert_or_assign(key, Shared{peer, std::move(buffer)}).first->second.buffer;
}

bool Engine::Impl::taken(const Peer& peer, const Request& r, const Buffer& local) const {
  return std::any_of(transports.begin(), transports.end(), [&](const auto& t) {
    return t->takes(local) && t->reaches(peer, r.offset, r.op);
  });
}

Result<Engine::Impl::Ends> Engine::Impl::ends_of(const Request& r, const PeerPtr& peer) {
  Ends ends;
  if (registry->has_devices()) {
    MC_TRY(ends.local, registry->pin_device(r.local, span_of(r.bytes, r.rows, r.local_stride)));
    if (peer->same_process) {
      MC_TRY(ends.remote, registry->pin(r.offset, span_of(r.bytes, r.rows, r.remote_stride)));
      const bool device = ends.remote->backend != nullptr && ends.remote->data != nullptr;
      if (ends.local == nullptr && !device) ends.remote = nullptr;
      return ends;
    }
    ends.taken = ends.local != nullptr && taken(*peer, r, *ends.local);
  }
  if (!knows_kinds.load(std::memory_order_acquire) || !peer->same_host) return ends;
  const BufferInfo* const info = peer->find(r.offset, span_of(r.bytes, r.rows, r.remote_stride));
  if (info == nullptr || info->device_handle.bytes.empty() ||
      (r.op == Op::kWrite && !info->device_writes) || r.guard.offset != Guard::kNone)
    return ends;
  ends.remote = shared_by(peer, *info);
  ends.owned = ends.remote != nullptr && !peer->descriptor.tcp.empty() && allowed("tcp");
  return ends;
}

}  // namespace mc::xfer
