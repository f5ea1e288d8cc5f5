#include "xfer/transports/shm/vm.h"

#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "xfer/core/host.h"

namespace mc::xfer {
namespace {

constexpr size_t kPiecesMax = 256;           // of a system call; the kernel takes 1024
constexpr uint64_t kBytesMax = 4 * 1 << 20;  // of a system call: under a millisecond

// Collects pieces and moves them in few calls.
class VmCall {
 public:
  VmCall(const Slice& slice, const Clock& clock, bool read)
      : slice_(slice), clock_(clock), read_(read) {}

  Result<> add(void* local, uint64_t remote, uint64_t n) {
    auto* l = static_cast<std::byte*>(local);
    while (n > 0) {
      const uint64_t part = std::min(n, kBytesMax - bytes_);
      local_[count_] = {l, part};
      remote_[count_] = {reinterpret_cast<void*>(remote), part};
      ++count_;
      bytes_ += part;
      l += part;
      remote += part;
      n -= part;
      if (count_ == kPiecesMax || bytes_ == kBytesMax) MC_TRY_(flush());
    }
    return {};
  }

  Result<> flush() {
    size_t first = 0;
    while (first < count_) {
      if (slice_.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice_));
      if (slice_.deadline != Time::max() && clock_.now() >= slice_.deadline)
        return fail(expired_error(slice_));
      MC_TRY(uint64_t moved, call(first));
      for (; first < count_ && moved >= local_[first].iov_len; ++first)
        moved -= local_[first].iov_len;
      if (moved == 0) continue;
      for (iovec* part : {&local_[first], &remote_[first]}) {
        part->iov_base = static_cast<std::byte*>(part->iov_base) + moved;
        part->iov_len -= moved;
      }
    }
    count_ = 0;
    bytes_ = 0;
    return {};
  }

 private:
  Result<uint64_t> call(size_t first) const {
    const auto pid = static_cast<pid_t>(slice_.peer->descriptor.pid);
    const size_t n = count_ - first;
    const ssize_t moved = read_
                              ? ::process_vm_readv(pid, &local_[first], n, &remote_[first], n, 0)
                              : ::process_vm_writev(pid, &local_[first], n, &remote_[first], n, 0);
    if (moved > 0) return static_cast<uint64_t>(moved);
    if (moved < 0 && errno == ESRCH) return fail(Code::kUnavailable, "pid %d is gone", pid);
    return fail(Code::kUnavailable, "memory of pid %d: %s", pid,
                moved == 0 ? "nothing moved" : std::strerror(errno));
  }

  const Slice& slice_;
  const Clock& clock_;
  const bool read_;
  size_t count_ = 0;
  uint64_t bytes_ = 0;
  std::array<iovec, kPiecesMax> local_, remote_;
};

// What tells that the bytes are still the peer's to give: its word, and the guard if there is one.
struct Words {
  uint64_t alive = 0, guard = 0;
};

}  // namespace

Result<> move_vm(const Slice& slice, const BufferInfo& buffer, const Clock& clock) {
  const Piece& p = slice.piece;
  const Peer& peer = *slice.peer;
  const bool guarded = slice.guard.offset != Guard::kNone;
  const bool read = slice.op == Op::kRead;
  // The owner could not tell when the bytes of a process that stands still have landed.
  if (guarded && !read)
    return fail(Code::kUnsupported, "guarded writes into memory of the application go another way");
  if (!process_alive(peer.pid))  // also before the first byte: its pid may be another's by now
    return fail(Code::kUnavailable, "pid %u is gone", peer.descriptor.pid);
  auto address = [&](uint64_t offset) { return buffer.remote_addr + (offset - buffer.offset); };
  Words before, after;
  auto look = [&](VmCall& call, Words& words) -> Result<> {
    MC_TRY_(call.add(&words.alive, buffer.alive_addr, sizeof words.alive));
    if (!guarded) return {};
    return call.add(&words.guard, address(slice.guard.offset), sizeof words.guard);
  };
  auto valid = [&](const Words& words) -> Result<> {
    if (words.alive != buffer.alive)
      return fail(Code::kStale, "%s withdrew this memory", peer.descriptor.node.c_str());
    if (guarded && words.guard != slice.guard.expected)
      return fail(Code::kStale, "the bytes at %llu of %s have another owner now",
                  static_cast<unsigned long long>(p.remote), peer.descriptor.node.c_str());
    return {};
  };
  VmCall reads(slice, clock, true);
  VmCall writes(slice, clock, false);
  MC_TRY_(look(reads, before));
  if (!read) {
    MC_TRY_(reads.flush());
    MC_TRY_(valid(before));
  }
  VmCall& call = read ? reads : writes;
  for (uint64_t row = 0; row < p.rows; ++row)
    MC_TRY_(call.add(slice.local + row * p.local_stride, address(p.remote + row * p.remote_stride),
                     p.bytes));
  MC_TRY_(writes.flush());
  MC_TRY_(look(reads, after));
  MC_TRY_(reads.flush());
  if (!process_alive(peer.pid))
    return fail(Code::kUnavailable, "pid %u is gone", peer.descriptor.pid);
  MC_TRY_(valid(before));
  return valid(after);
}

}  // namespace mc::xfer
