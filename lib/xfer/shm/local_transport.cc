#include "xfer/shm/local_transport.h"

#include <algorithm>

#include "xfer/host.h"
#include "xfer/shm/vm.h"

namespace mc::xfer {
namespace {

// `r` is a Request or a Piece: both say how many rows lie how far apart.
Rows rows_of(Op op, std::byte* local, std::byte* remote, const auto& r) {
  if (op == Op::kRead) return {local, remote, r.bytes, r.rows, r.local_stride, r.remote_stride};
  return {remote, local, r.bytes, r.rows, r.remote_stride, r.local_stride};
}

Result<> allowed(const Peer& peer, const BufferInfo& buffer, const LocalRange& range) {
  if (range.op == Op::kWrite && !buffer.writable)
    return fail(Code::kDenied, "the memory of %s at %llu is read-only",
                peer.descriptor.node.c_str(), static_cast<unsigned long long>(range.offset));
  if (range.guard.offset == Guard::kNone) return {};
  if (range.guard.offset < buffer.offset || buffer.bytes < 8 ||
      range.guard.offset - buffer.offset > buffer.bytes - 8)
    return fail(Code::kInvalid, "the guard is not in the buffer it guards");
  return {};
}

Error gone(const Peer& peer) {
  return {Code::kUnavailable,
          strf("%s (pid %u) is gone", peer.descriptor.node.c_str(), peer.descriptor.pid)};
}

}  // namespace

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
  const auto buffer = peer.buffer(offset, 0);
  if (!buffer || (*buffer)->is_file()) return false;
  if (peer.same_process) return true;
  if (!config_.peers || !peer.same_host) return false;
  if ((*buffer)->shm_id != 0) {
    const Time until = peer.no_mapping_until.load();
    return !peer.descriptor.shm_socket.empty() && (until == Time{} || clock_.now() >= until);
  }
  const bool elsewhere = config_.yields_writes && !peer.descriptor.tcp.empty();
  return (*buffer)->remote_addr != 0 && (op == Op::kRead || !elsewhere);
}

// Small, and nothing to wait for: cheaper than waking a copy thread.
bool LocalTransport::at_once(const Slice& slice) const {
  if (slice.piece.total() > kInlineBytes || slice.together > kCrowdBytes) return false;
  if (slice.peer->same_process) return true;
  const auto buffer = slice.peer->buffer(slice.piece.remote, 0);
  return !buffer || (*buffer)->shm_id == 0 || mappings_.known(slice.peer, **buffer) != nullptr;
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
    if (!stopped) queue_.push_back({std::move(slice), nullptr});
  }
  if (stopped)
    sink_.finished(std::move(slice), fail(Code::kUnavailable, "shutting down"));
  else
    changed_.notify_one();
}

// The next entry of the queue, with as many small slices behind it as make up one piece. False:
// there is none and will be none.
bool LocalTransport::take(std::vector<Work>& work, bool& stopped) {
  Lock lock(mutex_);
  while (queue_.empty() && !stopping_) changed_.wait(mutex_);
  stopped = stopping_;
  for (uint64_t bytes = 0; !queue_.empty() && bytes < kPieceBytes;) {
    Work& next = queue_.front();
    if (next.job != nullptr && !work.empty()) break;
    bytes += next.job != nullptr ? kPieceBytes : next.slice->piece.total();
    work.push_back(std::move(next));
    queue_.pop_front();
  }
  return !work.empty();
}

void LocalTransport::run() {
  bool stopped = false;
  for (std::vector<Work> work; take(work, stopped); work.clear()) {
    copying_.fetch_add(1, std::memory_order_relaxed);
    for (Work& w : work) {
      if (w.job != nullptr)  // its caller copies too, and need not wait for us to begin
        w.job->work([&] { return copying_.load(std::memory_order_relaxed) <= config_.workers; });
      else if (stopped)
        sink_.finished(std::move(w.slice), fail(Code::kUnavailable, "shutting down"));
      else
        finish(std::move(w.slice));
    }
    copying_.fetch_sub(1, std::memory_order_relaxed);
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
  MC_TRY(const BufferInfo* buffer,
         slice.peer->buffer(p.remote, span_of(p.bytes, p.rows, p.remote_stride)));
  if (!slice.peer->same_process && buffer->shm_id == 0) {
    MC_TRY_(allowed(*slice.peer, *buffer, {slice.op, p.remote, slice.guard}));
    return move_vm(slice, *buffer, clock_);
  }
  return move_mapped(slice, *buffer);
}

Result<LocalTransport::There> LocalTransport::locate(const PeerPtr& peer, const BufferInfo& buffer,
                                                     const LocalRange& range, bool may_wait) {
  MC_TRY_(allowed(*peer, buffer, range));
  There there;
  bool writable = false;
  if (peer->same_process) {
    // Looked up each time: the buffer may have been unregistered since.
    auto own = registry_.pin(buffer.offset, buffer.bytes);
    if (!own) return fail(Code::kStale, "this memory was withdrawn");
    if ((*own)->backing != nullptr)
      return fail(Code::kUnsupported, "the bytes at %llu are not in host memory",
                  static_cast<unsigned long long>(range.offset));
    there.own = std::move(*own);
    there.data = there.own->data;
    writable = there.own->writable;
  } else {
    there.mapping = mappings_.known(peer, buffer);
    if (there.mapping == nullptr && !may_wait)
      return fail(Code::kBusy, "the memory of %s is not mapped yet", peer->descriptor.node.c_str());
    if (there.mapping == nullptr) {
      MC_TRY(there.mapping, mappings_.map(peer, buffer, clock_.now()));
    }
    there.data = there.mapping->data;
    writable = there.mapping->writable;
  }
  if (range.op == Op::kWrite && !writable)
    return fail(Code::kDenied, "the memory of %s at %llu is read-only",
                peer->descriptor.node.c_str(), static_cast<unsigned long long>(range.offset));
  if (range.guard.offset != Guard::kNone)
    there.guard = there.data + (range.guard.offset - buffer.offset);
  if (reinterpret_cast<uintptr_t>(there.guard) % 8 != 0)
    return fail(Code::kInvalid, "the guard is not 8-byte aligned in memory");
  there.data += range.offset - buffer.offset;
  return there;
}

Result<> LocalTransport::valid(const There& there, const Peer& peer,
                               const LocalRange& range) const {
  if (there.mapping != nullptr && guard_word(there.mapping->alive) != 1)
    return fail(Code::kStale, "%s withdrew this memory", peer.descriptor.node.c_str());
  if (there.guard != nullptr && guard_word(there.guard) != range.guard.expected)
    return fail(Code::kStale, "the bytes at %llu of %s have another owner now",
                static_cast<unsigned long long>(range.offset), peer.descriptor.node.c_str());
  return {};
}

Result<> LocalTransport::before_copy(const There& there, const Peer& peer, const LocalRange& range,
                                     Time now) const {
  if (there.mapping != nullptr && !alive_of_late(peer.pid, peer.seen_alive, now))
    return fail(gone(peer));
  return valid(there, peer, range);
}

Result<> LocalTransport::after_copy(const There& there, const Peer& peer, const LocalRange& range,
                                    uint64_t bytes) const {
  if (range.op == Op::kWrite && there.guard != nullptr)
    fence_copies();  // all of it landed under this guard, or we say so
  else
    fence_reads();
  MC_TRY_(valid(there, peer, range));
  if (there.mapping != nullptr && bytes >= kAskBytes && !process_alive(peer.pid))
    return fail(gone(peer));
  return {};
}

Result<> LocalTransport::move_mapped(const Slice& slice, const BufferInfo& buffer) {
  const Piece& p = slice.piece;
  const LocalRange range{slice.op, p.remote, slice.guard};
  MC_TRY(const There there, locate(slice.peer, buffer, range, true));
  MC_TRY_(before_copy(there, *slice.peer, range, clock_.now()));
  copy_once(rows_of(slice.op, slice.local, there.data, p), recent_, slice.together);
  return after_copy(there, *slice.peer, range, p.total());
}

bool LocalTransport::copy_now(const Request& r, const PeerPtr& peer, Time now) {
  const bool reachable = peer->same_process || (config_.peers && peer->same_host);
  if (!reachable || peer->fate.load(std::memory_order_acquire) != Peer::Fate::kOpen) return false;
  const auto buffer = peer->buffer(r.offset, span_of(r.bytes, r.rows, r.remote_stride));
  if (!buffer || (!peer->same_process && (*buffer)->shm_id == 0) || now >= r.deadline) return false;
  const LocalRange range{r.op, r.offset, r.guard};
  const auto there = locate(peer, **buffer, range, false);
  if (!there || !before_copy(*there, *peer, range, now)) return false;
  const Rows rows = rows_of(r.op, r.local, there->data, r);
  if (rows.total() <= kInlineBytes)
    copy_once(rows, recent_);
  else if (!copy_with_help(rows, r.deadline, *peer))
    return false;
  return after_copy(*there, *peer, range, rows.total()).has_value();
}

// False when it was given up: the deadline passed, or the peer was closed or replaced.
bool LocalTransport::copy_with_help(const Rows& rows, Time deadline, const Peer& peer) {
  const auto job = std::make_shared<CopyJob>(rows, kPieceBytes, recent_);
  const uint32_t copying = copying_.fetch_add(1, std::memory_order_relaxed) + 1;
  uint32_t helpers = 0;
  if (rows.total() > kAloneBytes && copying < config_.workers) {
    helpers = config_.workers - copying;
    Lock lock(mutex_);
    if (stopping_) helpers = 0;
    for (uint32_t i = 0; i < helpers; ++i) queue_.push_back({nullptr, job});
  }
  for (uint32_t i = 0; i < helpers; ++i) changed_.notify_one();
  job->work([&] {
    return (deadline == Time::max() || clock_.now() < deadline) &&
           peer.fate.load(std::memory_order_relaxed) == Peer::Fate::kOpen;
  });
  const bool all = job->finish();
  if (helpers > 0) {
    Lock lock(mutex_);
    std::erase_if(queue_, [&](const Work& w) { return w.job == job; });
  }
  copying_.fetch_sub(1, std::memory_order_relaxed);
  return all;
}

Result<> LocalTransport::raise(const Slice& slice) {
  const PeerPtr& peer = slice.peer;
  MC_TRY(const BufferInfo* buffer, peer->buffer(slice.guard.offset, 8));
  if (!peer->same_process && buffer->shm_id == 0)
    return fail(Code::kUnavailable, "no atomic access to memory of pid %u", peer->descriptor.pid);
  MC_TRY(const There there,
         locate(peer, *buffer, {Op::kWrite, slice.guard.offset, slice.guard}, true));
  if (!peer->same_process && !process_alive(peer->pid)) return fail(gone(*peer));
  if (there.mapping != nullptr && guard_word(there.mapping->alive) != 1)
    return fail(Code::kStale, "%s withdrew this memory", peer->descriptor.node.c_str());
  if (!raise_guard_word(there.guard, slice.guard.expected))
    return fail(Code::kStale, "the guard at %llu of %s is newer already",
                static_cast<unsigned long long>(slice.guard.offset), peer->descriptor.node.c_str());
  return {};
}

void LocalTransport::forget(const PeerPtr& peer) { mappings_.forget(peer); }

}  // namespace mc::xfer
