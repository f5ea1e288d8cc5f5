#include "xfer/shm/local_transport.h"

#include <sys/mman.h>
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
  BufferPtr own;  // of this process: keeps the memory while it is copied
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
                               uint32_t workers)
    : sink_(sink), registry_(registry), clock_(clock) {
  for (uint32_t i = 0; i < std::max(1u, workers); ++i) threads_.emplace_back([this] { run(); });
}

LocalTransport::~LocalTransport() {
  {
    Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& t : threads_) t.join();
}

bool LocalTransport::reaches(const Peer& peer, uint64_t offset) const {
  if (peer.same_process) return true;
  auto buffer = peer.buffer(offset, 0);
  return peer.same_host && buffer &&
         ((*buffer)->shm_id != 0 ? !peer.descriptor.shm_socket.empty()
                                 : (*buffer)->remote_addr != 0);
}

void LocalTransport::submit(SlicePtr slice) {
  if (slice->piece.total() <= kInlineBytes) {
    finish(std::move(slice));
    return;
  }
  {
    Lock lock(mutex_);
    queue_.push_back(std::move(slice));
  }
  changed_.notify_one();
}

void LocalTransport::run() {
  for (;;) {
    SlicePtr slice;
    {
      Lock lock(mutex_);
      while (queue_.empty() && !stopping_) changed_.wait(mutex_);
      if (queue_.empty()) return;
      slice = std::move(queue_.front());
      queue_.pop_front();
    }
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
  if (slice.raise) return raise(slice);
  const Piece& p = slice.piece;
  const uint64_t span = span_of(p.bytes, p.rows, p.remote_stride);
  MC_TRY(const BufferInfo* buffer, slice.peer->buffer(p.remote, span));
  if (slice.op == Op::kWrite && !buffer->writable)
    return fail(Code::kDenied, "the memory of %s at %llu is read-only",
                slice.peer->descriptor.node.c_str(), static_cast<unsigned long long>(p.remote));
  if (slice.guard.offset != Guard::kNone) {
    MC_TRY_(slice.peer->buffer(slice.guard.offset, 8));
    if (slice.guard.offset < buffer->offset || slice.guard.offset - buffer->offset > buffer->bytes)
      return fail(Code::kInvalid, "the guard is not in the buffer it guards");
  }
  if (!slice.peer->same_process && buffer->shm_id == 0) return move_vm(slice, *buffer);
  return move_mapped(slice, *buffer);
}

Result<LocalTransport::MappingPtr> LocalTransport::mapping(const PeerPtr& peer,
                                                           const BufferInfo& buffer) {
  if (peer->same_process) {
    // Looked up each time: the buffer may have been unregistered since.
    auto m = std::make_shared<Mapping>();
    MC_TRY(m->own, registry_.find(buffer.offset, buffer.bytes));
    m->data = m->own->data;
    m->bytes = m->own->bytes;
    m->writable = m->own->writable;
    return m;
  }
  Lock lock(mutex_);  // held while mapping: rare, and two threads would map it twice
  auto& known = mappings_[{peer.get(), buffer.shm_id}];
  if (known != nullptr) return known;
  MC_TRY(ReceivedFd received, fetch_fd(peer->descriptor.shm_socket, buffer.shm_id));
  if (received.bytes != buffer.bytes)
    return fail(Code::kStale, "%s offers other memory now", peer->descriptor.node.c_str());
  auto m = std::make_shared<Mapping>();
  const size_t mapped = page_up(buffer.bytes) + kPage;
  const int access = received.writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* p = ::mmap(nullptr, mapped, access, MAP_SHARED, received.fd.get(), 0);
  if (p == MAP_FAILED) return fail_errno("map memory of %s", peer->descriptor.node.c_str());
  m->data = static_cast<std::byte*>(p);
  m->bytes = buffer.bytes;
  m->mapped = mapped;
  m->writable = received.writable;
  m->alive = m->data + page_up(buffer.bytes);
  known = m;
  return known;
}

Result<> LocalTransport::move_mapped(const Slice& slice, const BufferInfo& buffer) {
  MC_TRY(const MappingPtr m, mapping(slice.peer, buffer));
  const Piece& p = slice.piece;
  std::byte* remote = m->data + (p.remote - buffer.offset);
  const std::byte* guard =
      slice.guard.offset == Guard::kNone ? nullptr : m->data + (slice.guard.offset - buffer.offset);
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
    if (slice.guard.offset == Guard::kNone) return {};
    uint64_t word = 0;
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
  if (!raise_guard_word(m->data + (slice.guard.offset - buffer->offset), slice.guard.expected))
    return fail(Code::kStale, "the guard at %llu of %s is newer already",
                static_cast<unsigned long long>(slice.guard.offset), peer->descriptor.node.c_str());
  return {};
}

void LocalTransport::forget(const PeerPtr& peer) {
  Lock lock(mutex_);
  std::erase_if(mappings_, [&](const auto& m) { return m.first.first == peer.get(); });
}

}  // namespace mc::xfer
