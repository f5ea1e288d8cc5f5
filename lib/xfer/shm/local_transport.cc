#include "xfer/shm/local_transport.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "xfer/copy.h"
#include "xfer/host.h"
#include "xfer/shm/fd_server.h"

namespace mc::xfer {

struct LocalTransport::Mapping {
  BufferPtr own;  // of this process: pinned while it is copied
  PeerPtr peer;   // of another: as long as it lives, its address is no other peer's
  std::byte* data = nullptr;
  uint64_t bytes = 0, mapped = 0;
  bool writable = false;
  const std::byte* alive = nullptr;  // the owner's word: 1 while the buffer is offered
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (mapped > 0) ::munmap(data, mapped);
  }
};

LocalTransport::LocalTransport(Sink& sink, const Registry& registry, const Clock& clock,
                               Config config)
    : sink_(sink), registry_(registry), clock_(clock), config_(config) {
  for (uint32_t i = 0; i < std::max(1u, config_.workers); ++i)
    threads_.emplace_back([this] { run(); });
}

void LocalTransport::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& t : threads_) t.join();
  threads_.clear();
}

bool LocalTransport::reaches(const Peer& peer, uint64_t offset, Op op) const {
  if (peer.same_process) return true;
  if (!config_.peers || !peer.same_host) return false;
  const auto buffer = peer.buffer(offset, 0);
  if (!buffer) return false;
  if ((*buffer)->shm_id != 0) return !peer.descriptor.shm_socket.empty() && !peer.no_mapping.load();
  const bool elsewhere = config_.yields_writes && !peer.descriptor.tcp.empty();
  return (*buffer)->remote_addr != 0 && (op == Op::kRead || !elsewhere);
}

// Small, and nothing to wait for: cheaper than waking a copy thread.
bool LocalTransport::at_once(const Slice& slice) {
  if (slice.piece.total() > kInlineBytes) return false;
  if (slice.peer->same_process) return true;
  const auto buffer = slice.peer->buffer(slice.piece.remote, 0);
  if (!buffer || (*buffer)->shm_id == 0) return true;
  Lock lock(mappings_mutex_);
  return mappings_.contains({slice.peer.get(), (*buffer)->shm_id});
}

void LocalTransport::submit(SlicePtr slice) {
  if (at_once(*slice)) {
    finish(std::move(slice));
    return;
  }
  bool stopped = false;
  {
    Lock lock(mutex_);
    stopped = stopping_;
    if (!stopped) queue_.push_back(std::move(slice));
  }
  if (stopped)
    sink_.finished(std::move(slice), fail(Code::kUnavailable, "shutting down"));
  else
    changed_.notify_one();
}

void LocalTransport::run() {
  for (;;) {
    SlicePtr slice;
    bool stopped = false;
    {
      Lock lock(mutex_);
      while (queue_.empty() && !stopping_) changed_.wait(mutex_);
      if (queue_.empty()) return;
      stopped = stopping_;
      slice = std::move(queue_.front());
      queue_.pop_front();
    }
    if (stopped)
      sink_.finished(std::move(slice), fail(Code::kUnavailable, "shutting down"));
    else
      finish(std::move(slice));
  }
}

void LocalTransport::finish(SlicePtr slice) {
  Result<> outcome;
  if (slice->cancelled->load(std::memory_order_acquire))
    outcome = fail(cancelled_error(*slice));
  else if (slice->deadline != Time::max() && clock_.now() >= slice->deadline)
    outcome = fail(expired_error(*slice));
  else
    outcome = move(*slice);
  sink_.finished(std::move(slice), std::move(outcome));
}

Result<> LocalTransport::move(const Slice& slice) {
  MC_TRY_(still_open(*slice.peer));
  if (slice.raise) return raise(slice);
  const Piece& p = slice.piece;
  const uint64_t span = span_of(p.bytes, p.rows, p.remote_stride);
  MC_TRY(const BufferInfo* buffer, slice.peer->buffer(p.remote, span));
  if (slice.op == Op::kWrite && !buffer->writable)
    return fail(Code::kDenied, "the memory of %s at %llu is read-only",
                slice.peer->descriptor.node.c_str(), static_cast<unsigned long long>(p.remote));
  if (slice.guard.offset != Guard::kNone) {
    MC_TRY_(slice.peer->buffer(slice.guard.offset, 8));
    if (slice.guard.offset < buffer->offset || slice.guard.offset - buffer->offset >= buffer->bytes)
      return fail(Code::kInvalid, "the guard is not in the buffer it guards");
  }
  if (!slice.peer->same_process && buffer->shm_id == 0) return move_vm(slice, *buffer);
  return move_mapped(slice, *buffer);
}

Result<LocalTransport::MappingPtr> LocalTransport::mapping(const PeerPtr& peer,
                                                           const BufferInfo& buffer) {
  if (peer->same_process) {
    // Looked up each time: the buffer may have been unregistered since.
    auto own = registry_.pin(buffer.offset, buffer.bytes);
    if (!own) return fail(Code::kStale, "this memory was withdrawn");
    auto m = std::make_shared<Mapping>();
    m->own = std::move(*own);
    m->data = m->own->data;
    m->bytes = m->own->bytes;
    m->writable = m->own->writable;
    return m;
  }
  const MappingKey key{peer.get(), buffer.shm_id};
  {
    Lock lock(mappings_mutex_);
    const auto known = mappings_.find(key);
    if (known != mappings_.end()) return known->second;
  }
  if (peer->no_mapping.load())
    return fail(Code::kUnavailable, "%s does not hand out its memory",
                peer->descriptor.node.c_str());
  auto fresh = map(peer, buffer);  // may wait for the owner; two threads may both do it
  if (!fresh) {
    if (fresh.error().code != Code::kStale) peer->no_mapping.store(true);
    return fresh;
  }
  Lock lock(mappings_mutex_);
  MC_TRY_(still_open(*peer));  // else forget() was here already, and nobody would drop this one
  return mappings_.emplace(key, std::move(*fresh)).first->second;
}

Result<LocalTransport::MappingPtr> LocalTransport::map(const PeerPtr& peer,
                                                       const BufferInfo& buffer) const {
  const char* node = peer->descriptor.node.c_str();
  auto received = fetch_fd(peer->descriptor.shm_socket, buffer.shm_id);
  if (!received && received.error().code == Code::kNotFound)
    return fail(Code::kStale, "%s withdrew this memory", node);
  if (!received) return fail(received.error());
  if (received->bytes != buffer.bytes)
    return fail(Code::kStale, "%s offers other memory now", node);
  // What was received must be as large as we map, and stay so: a hole in it would be SIGBUS.
  const size_t mapped = page_up(buffer.bytes) + kPage;
  struct stat file {};
  const int seals = ::fcntl(received->fd.get(), F_GET_SEALS);
  if (::fstat(received->fd.get(), &file) != 0 || static_cast<uint64_t>(file.st_size) < mapped ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0)
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
  return m;
}

Result<> LocalTransport::move_mapped(const Slice& slice, const BufferInfo& buffer) {
  MC_TRY(const MappingPtr m, mapping(slice.peer, buffer));
  const Piece& p = slice.piece;
  if (slice.op == Op::kWrite && !m->writable)
    return fail(Code::kDenied, "the memory of %s at %llu is read-only",
                slice.peer->descriptor.node.c_str(), static_cast<unsigned long long>(p.remote));
  std::byte* remote = m->data + (p.remote - buffer.offset);
  const std::byte* guard =
      slice.guard.offset == Guard::kNone ? nullptr : m->data + (slice.guard.offset - buffer.offset);
  if (reinterpret_cast<uintptr_t>(guard) % 8 != 0)
    return fail(Code::kInvalid, "the guard is not 8-byte aligned in memory");
  auto valid = [&]() -> Result<> {
    if (m->alive != nullptr && !guard_holds(m->alive, 1))
      return fail(Code::kStale, "%s withdrew this memory", slice.peer->descriptor.node.c_str());
    if (!slice.peer->same_process && !process_alive(slice.peer->pid))
      return fail(Code::kUnavailable, "%s (pid %u) is gone", slice.peer->descriptor.node.c_str(),
                  slice.peer->descriptor.pid);
    if (guard != nullptr && !guard_holds(guard, slice.guard.expected))
      return fail(Code::kStale, "the bytes at %llu of %s have another owner now",
                  static_cast<unsigned long long>(p.remote), slice.peer->descriptor.node.c_str());
    return {};
  };
  MC_TRY_(valid());
  for (uint64_t row = 0; row < p.rows; ++row) {
    std::byte* local_row = slice.local + row * p.local_stride;
    std::byte* remote_row = remote + row * p.remote_stride;
    if (slice.op == Op::kRead)
      copy_bytes(local_row, remote_row, p.bytes, slice.streaming);
    else
      copy_bytes(remote_row, local_row, p.bytes, slice.streaming);
  }
  return valid();
}

Result<> LocalTransport::move_vm(const Slice& slice, const BufferInfo& buffer) {
  const Piece& p = slice.piece;
  const auto pid = static_cast<pid_t>(slice.peer->descriptor.pid);
  auto address = [&](uint64_t offset) {
    return reinterpret_cast<void*>(buffer.remote_addr + (offset - buffer.offset));
  };
  auto vm = [&](bool read, void* local, void* remote, uint64_t n) -> Result<> {
    for (uint64_t done = 0; done < n;) {
      const iovec l{static_cast<std::byte*>(local) + done, n - done};
      const iovec r{static_cast<std::byte*>(remote) + done, n - done};
      const ssize_t moved = read ? ::process_vm_readv(pid, &l, 1, &r, 1, 0)
                                 : ::process_vm_writev(pid, &l, 1, &r, 1, 0);
      if (moved < 0 && errno == ESRCH) return fail(Code::kUnavailable, "pid %d is gone", pid);
      if (moved <= 0)  // refused by the kernel's policy, or unmapped: tcp may still do it
        return fail(Code::kUnavailable, "memory of pid %d: %s", pid, std::strerror(errno));
      done += static_cast<uint64_t>(moved);
    }
    return {};
  };
  auto valid = [&]() -> Result<> {
    if (!process_alive(slice.peer->pid)) return fail(Code::kUnavailable, "pid %d is gone", pid);
    uint64_t word = 0;
    MC_TRY_(vm(true, &word, reinterpret_cast<void*>(buffer.alive_addr), sizeof word));
    if (word != buffer.alive)
      return fail(Code::kStale, "%s withdrew this memory", slice.peer->descriptor.node.c_str());
    if (slice.guard.offset == Guard::kNone) return {};
    MC_TRY_(vm(true, &word, address(slice.guard.offset), sizeof word));
    if (word != slice.guard.expected)
      return fail(Code::kStale, "the bytes at %llu of %s have another owner now",
                  static_cast<unsigned long long>(p.remote), slice.peer->descriptor.node.c_str());
    return {};
  };
  MC_TRY_(valid());
  for (uint64_t row = 0; row < p.rows; ++row)
    MC_TRY_(vm(slice.op == Op::kRead, slice.local + row * p.local_stride,
               address(p.remote + row * p.remote_stride), p.bytes));
  return valid();
}

Result<> LocalTransport::raise(const Slice& slice) {
  const PeerPtr& peer = slice.peer;
  MC_TRY(const BufferInfo* buffer, peer->buffer(slice.guard.offset, 8));
  if (!peer->same_process && buffer->shm_id == 0)
    return fail(Code::kUnavailable, "no atomic access to memory of pid %u", peer->descriptor.pid);
  if (!buffer->writable)
    return fail(Code::kDenied, "the memory of %s is read-only", peer->descriptor.node.c_str());
  MC_TRY(const MappingPtr m, mapping(peer, *buffer));
  if (!peer->same_process && !process_alive(peer->pid))
    return fail(Code::kUnavailable, "%s is gone", peer->descriptor.node.c_str());
  std::byte* word = m->data + (slice.guard.offset - buffer->offset);
  if (!m->writable) return fail(Code::kDenied, "this memory is read-only");
  if (reinterpret_cast<uintptr_t>(word) % 8 != 0)
    return fail(Code::kInvalid, "the guard is not 8-byte aligned in memory");
  if (m->alive != nullptr && !guard_holds(m->alive, 1))
    return fail(Code::kStale, "%s withdrew this memory", peer->descriptor.node.c_str());
  if (!raise_guard_word(word, slice.guard.expected))
    return fail(Code::kStale, "the guard at %llu of %s is newer already",
                static_cast<unsigned long long>(slice.guard.offset), peer->descriptor.node.c_str());
  return {};
}

void LocalTransport::forget(const PeerPtr& peer) {
  Lock lock(mappings_mutex_);
  std::erase_if(mappings_, [&](const auto& m) { return m.first.first == peer.get(); });
}

}  // namespace mc::xfer
