#include "xfer/transports/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "xfer/memory/registry.h"
#include "xfer/transports/shm/fd_server.h"

namespace mc::xfer {
namespace {

constexpr Duration kLaterRest = std::chrono::seconds(5);

Result<MappingPtr> fetch_and_map(const PeerPtr& peer, const BufferInfo& buffer,
                                 const std::function<bool()>& given_up) {
  const char* node = peer->descriptor.node.c_str();
  auto received = fetch_fd(peer->descriptor.shm_socket, buffer.shm_id, given_up);
  if (!received && received.error().code == Code::kNotFound)
    return fail(Code::kStale, "%s withdrew this memory", node);
  if (!received) return fail(received.error());
  if (received->bytes != buffer.bytes)
    return fail(Code::kStale, "%s offers other memory now", node);
  // What was received must be as large as we map, and stay so: a hole in it would be SIGBUS.
  const uint64_t unit = map_unit(received->fd.get());
  const size_t mapped = (page_up(buffer.bytes) + kPage + unit - 1) / unit * unit;
  struct stat file {};
  const int seals = ::fcntl(received->fd.get(), F_GET_SEALS);
  if (::fstat(received->fd.get(), &file) != 0 || static_cast<uint64_t>(file.st_size) < mapped ||
      (!received->named && (seals < 0 || (seals & F_SEAL_SHRINK) == 0)))
    return fail(Code::kUnavailable, "%s handed out memory that may shrink", node);
  auto m = std::make_shared<Mapping>();
  const int access = received->writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* p = ::mmap(nullptr, mapped, access, MAP_SHARED, received->fd.get(), 0);
  if (p == MAP_FAILED)
    return fail(Code::kUnavailable, "map memory of %s: %s", node, std::strerror(errno));
  m->peer = peer;
  m->data = static_cast<std::byte*>(p);
  m->bytes = buffer.bytes;
  m->mapped = mapped;
  m->writable = received->writable;
  m->alive = m->data + page_up(buffer.bytes);
  if (m->writable) m->slots = write_slots_of(m->data, page_up(buffer.bytes));
  if (received->named && !m->guard.protect(m->data, mapped, std::max(unit, kPage), m->alive))
    return fail(Code::kUnavailable, "memory of %s: %zu named segments are mapped already", node,
                TruncationGuard::kMappingsMax);
  return m;
}

}  // namespace

Mapping::~Mapping() {
  if (mapped > 0) ::munmap(data, mapped);
}

MappingPtr Mappings::known(const PeerPtr& peer, const BufferInfo& buffer) const {
  Lock lock(mutex_);
  const auto it = mappings_.find({peer.get(), buffer.shm_id});
  return it == mappings_.end() ? nullptr : it->second;
}

Result<MappingPtr> Mappings::map(const PeerPtr& peer, const BufferInfo& buffer, Time now,
                                 const std::function<bool()>& given_up) {
  if (MappingPtr m = known(peer, buffer)) return m;
  if (now < peer->no_mapping_until.load())
    return fail(Code::kUnavailable, "%s does not hand out its memory",
                peer->descriptor.node.c_str());
  auto fresh = fetch_and_map(peer, buffer, given_up);  // two threads may both do it
  if (!fresh) {
    const Error& error = fresh.error();
    // Stopped, say, or out of files: it may answer yet.
    const bool later = error.code == Code::kTimeout || error.code == Code::kBusy;
    const bool cut_short = error.code == Code::kTimeout && given_up();
    if (error.code != Code::kStale && !cut_short)
      peer->no_mapping_until.store(later ? now + kLaterRest : Time::max());
    const bool elsewhere = later && !cut_short;  // another transport may have the time
    return fail(elsewhere ? Code::kUnavailable : error.code, "%s", error.what.c_str());
  }
  Lock lock(mutex_);
  MC_TRY_(still_open(*peer));  // else forget() ran already, and would not run again
  return mappings_.emplace(Key{peer.get(), buffer.shm_id}, std::move(*fresh)).first->second;
}

void Mappings::forget(const PeerPtr& peer) {
  Lock lock(mutex_);
  std::erase_if(mappings_, [&](const auto& m) { return m.first.first == peer.get(); });
}

}  // namespace mc::xfer
