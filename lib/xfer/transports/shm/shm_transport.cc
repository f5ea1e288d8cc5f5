#include "xfer/transports/shm/shm_transport.h"

#include <algorithm>

#include "xfer/core/host.h"
#include "xfer/transports/shm/vm.h"

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

// `word`: the owner's; null: of this process.
Result<> still_offered(const std::byte* word, const Peer& peer) {
  const uint64_t state = word == nullptr ? 1 : guard_word(word);
  if (state == 1) return {};
  const char* const node = peer.descriptor.node.c_str();
  if (state == TruncationGuard::kTruncated)
    return fail(Code::kCorrupt, "the file that holds the memory of %s was truncated", node);
  return fail(Code::kStale, "%s withdrew this memory", node);
}

// `alive`: as above.
Result<> raise_word(std::byte* word, const std::byte* alive, const Slice& slice) {
  MC_TRY_(still_offered(alive, *slice.peer));
  if (raise_guard_word(word, slice.guard.expected)) return {};
  return fail(Code::kStale, "the guard at %llu of %s is newer already",
              static_cast<unsigned long long>(slice.guard.offset),
              slice.peer->descriptor.node.c_str());
}

}  // namespace

LocalTransport::LocalTransport(Sink& sink, const Registry& registry, const Clock& clock,
                               Config config)
    : sink_(sink),
      registry_(registry),
      clock_(clock),
      config_(config),
      rule_{.copies = MachineCopies(config_.copies_file, host_id(), measure_copies)} {
  try {
    for (uint32_t i = 0; i < std::max(1u, config_.workers); ++i)
      threads_.emplace_back([this] { run(); });
  } catch (...) {
    stop();
    throw;
  }
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
  return peer.has_pid && (*buffer)->remote_addr != 0 && (op == Op::kRead || !elsewhere);
}

// Small, and without a wait: cheaper than waking a copy thread.
bool LocalTransport::at_once(const Slice& slice) const {
  if (slice.piece.total() > kInlineBytes || slice.batch_bytes > kCrowdBytes) return false;
  if (slice.peer->same_process) return true;
  const auto buffer = slice.peer->buffer(slice.piece.remote, 0);
  return !buffer || (*buffer)->shm_id == 0 || mappings_.known(slice.peer, **buffer) != nullptr;
}

void LocalTransport::submit(SlicePtr slice) {
  if (at_once(*slice)) {
    Job alone;
    alone.slice = std::move(slice);
    finish_all({&alone, 1});
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
  std::vector<Job> jobs;
  for (std::vector<Work> work; take(work, stopped); work.clear()) {
    copying_.fetch_add(1, std::memory_order_relaxed);
    for (Work& w : work) {
      if (w.job != nullptr) {  // its caller copies too, and need not wait for us to begin
        w.job->work([&] { return copying_.load(std::memory_order_relaxed) <= config_.workers; });
        continue;
      }
      Job& job = jobs.emplace_back();
      job.slice = std::move(w.slice);
      if (stopped) job.outcome = fail(Code::kUnavailable, "shutting down");
    }
    finish_all(jobs);
    jobs.clear();
    copying_.fetch_sub(1, std::memory_order_relaxed);
  }
}

// Where each goes is found out for all of them first: so the next one's first bytes are fetched
// while this one's last are copied. (Half the time of 16 KiB would be the wait for them.)
void LocalTransport::finish_all(std::span<Job> jobs) {
  for (size_t i = 0; i < jobs.size(); ++i)
    if (jobs[i].outcome) jobs[i].outcome = aim(jobs[i], i > 0 ? &jobs[i - 1] : nullptr);
  for (size_t i = 0; i < jobs.size(); ++i) {
    Job& job = jobs[i];
    if (job.outcome) job.outcome = move(job, i + 1 < jobs.size() ? begin_of(jobs[i + 1]) : Ahead{});
    job.held = {};  // a pin must not outlive the answer
    sink_.finished(std::move(job.slice), std::move(job.outcome));
  }
}

Ahead LocalTransport::begin_of(const Job& job) const {
  if (!job.mapped || !job.outcome) return {};
  const Rows rows = rows_of(job.slice->op, job.slice->local, job.held.there.data, job.slice->piece);
  return {rows.to, rows.from};
}

// `before`: perhaps in the same memory, which need not be looked up again.
Result<> LocalTransport::aim(Job& job, const Job* before) {
  const Slice& slice = *job.slice;
  MC_TRY_(still_open(*slice.peer));
  if (slice.advances_guard) return {};
  const Piece& p = slice.piece;
  MC_TRY(job.buffer, slice.peer->buffer(p.remote, span_of(p.bytes, p.rows, p.remote_stride)));
  const LocalRange range{slice.op, p.remote, slice.guard};
  MC_TRY_(allowed(*slice.peer, *job.buffer, range));
  if (!slice.peer->same_process && job.buffer->shm_id == 0) return {};
  job.mapped = true;
  if (before != nullptr && before->buffer == job.buffer && before->held.mapping != nullptr) {
    job.held.mapping = before->held.mapping;
    MC_TRY(job.held.there, place(*slice.peer, *job.buffer, range, mapping_of(*job.held.mapping)));
    return {};
  }
  MC_TRY(job.held, locate(slice.peer, *job.buffer, range, &slice));
  return {};
}

Result<> LocalTransport::move(const Job& job, const Ahead& next) {
  const Slice& slice = *job.slice;
  if (slice.cancelled->load(std::memory_order_acquire)) return fail(cancelled_error(slice));
  const Time now = clock_.now();
  if (now >= slice.deadline) return fail(expired_error(slice));
  MC_TRY_(still_open(*slice.peer));
  if (slice.advances_guard) return raise(slice);
  if (!job.mapped) return move_vm(slice, *job.buffer, clock_);
  const Piece& p = slice.piece;
  const LocalRange range{slice.op, p.remote, slice.guard};
  const WriteClaim claim(job.held.there.slots, p.remote, span_of(p.bytes, p.rows, p.remote_stride));
  if (claim.refused())
    return fail(Code::kUnsupported, "too many write into this memory of %s at a time",
                slice.peer->descriptor.node.c_str());
  if (slice.raises_first()) MC_TRY_(raise_word(job.held.there.guard, job.held.there.alive, slice));
  MC_TRY_(before_copy(job.held.there, *slice.peer, range, now));
  stop_if_told(slice);
  rule_.copies.learn_for(slice.batch_bytes);
  const Rows rows = rows_of(slice.op, slice.local, job.held.there.data, p);
  rule_.copy(rows, slice.batch_bytes, next);
  return after_copy(job.held.there, *slice.peer, range, rows.total());
}

Result<LocalTransport::Held> LocalTransport::locate(const PeerPtr& peer, const BufferInfo& buffer,
                                                    const LocalRange& range, const Slice* waits) {
  MC_TRY_(allowed(*peer, buffer, range));
  Held held;
  if (peer->same_process) {
    // Looked up each time: the buffer may have been unregistered since.
    auto own = registry_.pin(buffer.offset, buffer.bytes);
    if (!own) return fail(Code::kStale, "this memory was withdrawn");
    if ((*own)->backend != nullptr)
      return fail(Code::kUnsupported, "the bytes at %llu are not in host memory",
                  static_cast<unsigned long long>(range.offset));
    held.own = std::move(*own);
    const BufferMapping at{held.own->data, nullptr, held.own->writable, held.own->slots};
    MC_TRY(held.there, place(*peer, buffer, range, at));
    return held;
  }
  held.mapping = mappings_.known(peer, buffer);
  if (held.mapping == nullptr && waits == nullptr)
    return fail(Code::kBusy, "the memory of %s is not mapped yet", peer->descriptor.node.c_str());
  if (held.mapping == nullptr) {
    MC_TRY(held.mapping, mappings_.map(peer, buffer, clock_.now(), [&] {
      return waits->cancelled->load(std::memory_order_acquire) || clock_.now() >= waits->deadline;
    }));
  }
  MC_TRY(held.there, place(*peer, buffer, range, mapping_of(*held.mapping)));
  return held;
}

Result<LocalTransport::There> LocalTransport::place(const Peer& peer, const BufferInfo& buffer,
                                                    const LocalRange& range,
                                                    const BufferMapping& at) {
  if (range.op == Op::kWrite && !at.writable)
    return fail(Code::kDenied, "the memory of %s at %llu is read-only",
                peer.descriptor.node.c_str(), static_cast<unsigned long long>(range.offset));
  There there{at.data + (range.offset - buffer.offset), nullptr, at.alive, nullptr};
  if (range.guard.offset != Guard::kNone) {
    there.guard = at.data + (range.guard.offset - buffer.offset);
    if (range.op == Op::kWrite) there.slots = at.slots;
  }
  if (reinterpret_cast<uintptr_t>(there.guard) % 8 != 0)
    return fail(Code::kInvalid, "the guard is not 8-byte aligned in memory");
  return there;
}

Result<> LocalTransport::valid(const There& there, const Peer& peer,
                               const LocalRange& range) const {
  MC_TRY_(still_offered(there.alive, peer));
  if (there.guard != nullptr && guard_word(there.guard) != range.guard.expected)
    return fail(Code::kStale, "the bytes at %llu of %s have another owner now",
                static_cast<unsigned long long>(range.offset), peer.descriptor.node.c_str());
  return {};
}

Result<> LocalTransport::before_copy(const There& there, const Peer& peer, const LocalRange& range,
                                     Time now) const {
  if (there.alive != nullptr && !alive_of_late(peer.pid, peer.seen_alive, now))
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
  if (there.alive != nullptr && bytes >= kAskBytes && !process_alive(peer.pid))
    return fail(gone(peer));
  return {};
}

bool LocalTransport::copy_now(const Request& r, const PeerPtr& peer, Time now, uint64_t together) {
  const bool reachable = peer->same_process || (config_.peers && peer->same_host);
  if (!reachable || peer->state.load(std::memory_order_acquire) != PeerState::kOpen) return false;
  const auto buffer = peer->buffer(r.offset, span_of(r.bytes, r.rows, r.remote_stride));
  if (!buffer || (!peer->same_process && (*buffer)->shm_id == 0) || now >= r.deadline) return false;
  const LocalRange range{r.op, r.offset, r.guard};
  const auto held = locate(peer, **buffer, range, nullptr);
  if (!held) return false;
  const WriteClaim claim(held->there.slots, r.offset, span_of(r.bytes, r.rows, r.remote_stride));
  if (claim.refused() || !before_copy(held->there, *peer, range, now)) return false;
  const Rows rows = rows_of(r.op, r.local, held->there.data, r);
  if (rows.total() <= kInlineBytes)
    rule_.copy(rows, together);
  else if (!copy_with_help(rows, r.deadline, *peer))
    return false;
  CopyCacheSlot* slot = rows.total() <= kInlineBytes ? copy_cache_.for_this_thread() : nullptr;
  if (held->mapping != nullptr && slot != nullptr && slot->mutex.try_lock()) {
    // A peer that is closed or replaced was forgotten, or will be: forget() does not run again.
    if (peer->state.load(std::memory_order_acquire) == PeerState::kOpen)
      slot->learn({r.segment, *buffer, peer, held->mapping});
    slot->mutex.unlock();
  }
  return after_copy(held->there, *peer, range, rows.total()).has_value();
}

bool LocalTransport::copy_again(const Request& r, Time now, uint64_t together) {
  CopyCacheSlot* slot = r.bytes * r.rows <= kInlineBytes ? copy_cache_.for_this_thread() : nullptr;
  if (slot == nullptr || !slot->mutex.try_lock()) return false;
  const bool copied = copy_from_cache(*slot, r, now, together);
  slot->mutex.unlock();
  return copied;
}

bool LocalTransport::copy_from_cache(CopyCacheSlot& slot, const Request& r, Time now,
                                     uint64_t together) {
  const uint64_t span = span_of(r.bytes, r.rows, r.remote_stride);
  for (const CopyCacheSlot::Known& k : slot.known) {
    if (!k.holds(r, span)) continue;
    const LocalRange range{r.op, r.offset, r.guard};
    if (k.peer->state.load(std::memory_order_acquire) != PeerState::kOpen || now >= r.deadline ||
        !allowed(*k.peer, *k.buffer, range))
      return false;
    const auto there = place(*k.peer, *k.buffer, range, mapping_of(*k.mapping));
    if (!there) return false;
    const WriteClaim claim(there->slots, r.offset, span);
    if (claim.refused() || !before_copy(*there, *k.peer, range, now)) return false;
    const Rows rows = rows_of(r.op, r.local, there->data, r);
    rule_.copy(rows, together);
    if (!after_copy(*there, *k.peer, range, rows.total())) return false;
    slot.slices->add();
    slot.bytes->add(rows.total());
    slot.requests->add();
    return true;
  }
  return false;
}

// False when it was given up: the deadline passed, or the peer was closed or replaced.
bool LocalTransport::copy_with_help(const Rows& rows, Time deadline, const Peer& peer) {
  rule_.copies.learn_for(rows.total());
  const uint32_t copying = copying_.fetch_add(1, std::memory_order_relaxed) + 1;
  const bool shared = rows.total() > kAloneBytes && copying < config_.workers;
  const auto go_on = [&] {
    return (deadline == Time::max() || clock_.now() < deadline) &&
           peer.state.load(std::memory_order_relaxed) == PeerState::kOpen;
  };
  if (!shared) {
    const Pieces pieces(rows, kLonePieceBytes);
    uint64_t done = 0;
    for (; done < pieces.count() && go_on(); ++done) rule_.copy(pieces.at(done));
    copying_.fetch_sub(1, std::memory_order_relaxed);
    return done == pieces.count();
  }
  uint32_t helpers = config_.workers - copying;
  const auto job = std::make_shared<ParallelCopy>(rows, kPieceBytes, rule_);
  {
    Lock lock(mutex_);
    if (stopping_) helpers = 0;
    for (uint32_t i = 0; i < helpers; ++i) queue_.push_back({nullptr, job});
  }
  for (uint32_t i = 0; i < helpers; ++i) changed_.notify_one();
  job->work(go_on);
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
  MC_TRY(const Held held,
         locate(peer, *buffer, {Op::kWrite, slice.guard.offset, slice.guard}, &slice));
  if (!peer->same_process && !process_alive(peer->pid)) return fail(gone(*peer));
  MC_TRY_(raise_word(held.there.guard, held.there.alive, slice));
  return still_offered(held.there.alive, *peer);
}

void LocalTransport::forget(const PeerPtr& peer) {
  mappings_.forget(peer);
  copy_cache_.forget(peer);
}

}  // namespace mc::xfer
