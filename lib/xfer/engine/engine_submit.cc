// Turns requests into tasks and slices, gives slices to transports, and completes them.
#include <algorithm>
#include <bit>

#include "base/log.h"
#include "base/text.h"
#include "xfer/core/merge.h"
#include "xfer/engine/engine_impl.h"

namespace mc::xfer {
namespace {

constexpr Duration kWaitStep = std::chrono::hours(1);
constexpr Duration kStopStep = std::chrono::milliseconds(20);  // of who may be told to stop
constexpr uint64_t kDeviceSlice = 64 * kMiB;
constexpr uint64_t kTryInlineBytes = 4096;  // cost less to move than to queue
// A waiting thread moves so much itself. More is worth several threads.
constexpr uint64_t kAwaitedBytes = 512 * kKiB;
// A wake-up costs some 60 us on an idle machine. A waiter polls about that long before it sleeps,
// and yields the CPU between polls.
constexpr int kSpinRounds = 100, kSpinPauses = 8;

// Set while this thread is in submit(): the caller may hold a lock that its callback takes.
thread_local bool submitting = false;

// Can another transport succeed? Not if the request is invalid, its deadline passed, or its bytes
// have another owner.
bool worth_another(Code code) {
  return code == Code::kUnavailable || code == Code::kDenied || code == Code::kUnsupported ||
         code == Code::kNoSpace || code == Code::kCorrupt;
}

Time end_of(Duration budget, Time now) {
  return budget > Time::max() - now ? Time::max() : now + budget;
}

Duration backstop(Duration budget, const EngineOptions& options) {
  return budget > Duration::max() / 2 ? budget : budget + options.peer_timeout;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

bool spin_until_done(const Batch& batch) {
  for (int round = 0; round < kSpinRounds; ++round) {
    for (int i = 0; i < kSpinPauses; ++i) {
      if (batch.unfinished.load(std::memory_order_acquire) == 0) return true;
      pause();
    }
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

std::shared_ptr<Batch> Engine::Impl::find(BatchId id) const {
  Lock lock(batches_mutex);
  auto it = batches.find(id);
  return it == batches.end() ? nullptr : it->second;
}

// Returns: the buffer; null: none yet, but dispatch() can fetch a newer descriptor by address.
Result<const BufferInfo*> Engine::Impl::buffer_at(const Peer& peer, const Request& r) {
  auto range = peer.buffer(r.offset, span_of(r.bytes, r.rows, r.remote_stride));
  if (!range && !segments[r.segment].control.empty()) return nullptr;
  return range;
}

Result<PeerPtr> Engine::Impl::peer_for(const Request& r) {
  MC_TRY_(check(r));
  MC_TRY(PeerPtr peer, peer_of(r.segment));
  MC_TRY_(buffer_at(*peer, r));
  return peer;
}

// Checks and merges the requests. Returns: the merged ones, each with its peer.
Result<Engine::Impl::Admitted> Engine::Impl::admit(std::span<const Request> requests) {
  std::vector<BufferBase> bases(requests.size());
  {
    Lock lock(mutex);
    PeerPtr peer;  // of the request before; most are of one peer
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& r = requests[i];
      MC_TRY_(check(r));
      if (i == 0 || r.segment != requests[i - 1].segment) {
        MC_TRY(peer, peer_of(r.segment));
      }
      MC_TRY(const BufferInfo* buffer, buffer_at(*peer, r));
      if (buffer != nullptr) bases[i].remote = buffer->offset;
      bases[i].local = registry->device_at(r.local);
    }
  }
  const uint64_t bytes_max = kSlicesMax * std::max<uint64_t>(options.slice, kSliceBytesMin);
  MergeResult result = merge_by_address(requests, bases, bytes_max);
  Admitted all;
  all.order = std::move(result.order);
  for (const MergedRequest& merged : result.runs) all.work.push_back({merged, nullptr});
  Lock lock(mutex);
  for (Work& w : all.work) {
    MC_TRY(w.peer, peer_of(w.merged.request.segment));
  }
  return all;
}

Result<> Engine::Impl::submit(const std::shared_ptr<Batch>& batch,
                              std::span<const Request> requests, const Admitted& admitted,
                              Submission how) {
  const Notification* const after = how.after;
  const std::vector<Work>& work = admitted.work;
  std::unique_ptr<CompletionNotification> notice;
  std::vector<SegmentHandle> notified;
  if (after != nullptr) {
    MC_TRY(notified, notification_targets(*after, requests));
    notice = std::make_unique<CompletionNotification>();
    notice->notification = *after;
    notice->data_left = work.size();
    notice->deadline = how.deadline;
    for (const Request& r : requests) notice->deadline = std::min(notice->deadline, r.deadline);
  }
  auto tasks = std::make_unique<Task[]>(work.size() + notified.size());
  Task* const first = tasks.get();
  uint64_t batch_bytes = 0;
  for (const Request& r : requests) batch_bytes += r.bytes * r.rows;
  {
    Lock lock(batch->mutex);
    batch->reorder(admitted.order);
    for (size_t i = 0; i < work.size(); ++i) {
      const MergedRequest& merged = work[i].merged;
      batch->begin(first[i], merged.request.segment);
      first[i].notice = notice.get();
      if (notice != nullptr) first[i].instance = work[i].peer->instance;
      for (size_t n = merged.first; n < merged.first + merged.count; ++n) {
        const Request& r = requests[admitted.order.empty() ? n : admitted.order[n]];
        batch->add(first[i], r.bytes * r.rows);
      }
    }
    for (size_t i = 0; i < notified.size(); ++i) {
      Task& send = first[work.size() + i];
      batch->begin(send, notified[i]);
      for (const Work& w : work)
        if (w.merged.request.segment == notified[i]) send.instance = w.peer->instance;
      batch->add(send, after->payload.size());
      send.slices_left = 1;
      notice->sends.push_back(&send);
    }
    batch->tasks.push_back(std::move(tasks));
    if (notice != nullptr) batch->notices.push_back(std::move(notice));
    batch->unfinished += work.size() + notified.size();
    if (how.all_done && batch->unfinished > 0) {
      batch->all_done.push_back(std::move(how.all_done));
      how.all_done = {};
    }
  }
  const bool nested = std::exchange(submitting, true);
  if (how.all_done) run_or_defer({std::move(how.all_done)});
  const bool moves = how.awaited_for > Duration::zero() && batch_bytes <= kAwaitedBytes;
  AwaitedSlices awaited(moves ? clock.now() + std::min(how.awaited_for, AwaitedSlices::kTime)
                              : Time{});
  for (size_t i = 0; i < work.size(); ++i) {
    const bool more = i + 1 < work.size() && work[i + 1].peer == work[i].peer;
    Request r = work[i].merged.request;
    r.deadline = std::min(r.deadline, how.deadline);
    launch(TaskPtr(batch, &first[i]), r, work[i].peer, batch_bytes, more,
           moves || work.size() > 1 ? &awaited : nullptr);
  }
  awaited.submit();
  flush();
  submitting = nested;
  return {};
}

SlicePtr Engine::Impl::slice_of(const TaskPtr& task, const Request& r, const PeerPtr& peer,
                                const Piece& piece) const {
  auto slice = std::make_unique<Slice>();
  slice->op = r.op;
  slice->local = r.local + piece.local;
  slice->piece = piece;
  slice->guard = r.guard;
  slice->deadline = r.deadline;
  slice->priority = r.priority;
  slice->peer = peer;
  slice->task = task;
  slice->cancelled = &task->cancelled;
  return slice;
}

void Engine::Impl::launch(const TaskPtr& task, const Request& r, const PeerPtr& peer,
                          uint64_t batch_bytes, bool more, AwaitedSlices* awaited) {
  Piece only;
  std::vector<Piece> several;
  std::span<const Piece> pieces(&only, 1);
  const auto ends = ends_of(r, peer);
  // A device copy costs little more than its start, so its slices are large.
  const bool addressable = ends && ends->remote != nullptr;
  const uint64_t slice_bytes =
      addressable ? std::max<uint64_t>(kDeviceSlice, options.slice) : options.slice;
  if (!in_one_piece(r, slice_bytes, &only)) pieces = several = plan(r, slice_bytes);
  task->slices_left = pieces.size();
  const MemoryLocation memory =
      ends && ends->local != nullptr ? ends->local->memory_location : host_location(r.local);
  uint64_t at = 0;
  for (const Piece& piece : pieces) {
    SlicePtr slice = slice_of(task, r, peer, piece);
    slice->memory = memory;
    slice->task_offset = at;
    slice->batch_bytes = batch_bytes;
    slice->awaited = task->awaited && pieces.size() == 1;
    slice->wants_digest = r.digest && r.op == Op::kRead && r.rows == 1 && pieces.size() == 1;
    slice->more_follow = more || &piece != &pieces.back();
    at += piece.total();
    if (!ends)
      complete(std::move(slice), fail(ends.error()));
    else if (ends->local != nullptr || ends->remote != nullptr)
      staging.submit(std::move(slice), {ends->local, ends->remote, ends->owned, ends->taken});
    else
      dispatch(std::move(slice), awaited);
  }
}

// The last of several slices that were to leave together may have taken another transport, or
// failed.
void Engine::Impl::flush() {
  for (const auto& t : transports) t->flush();
}

void Engine::Impl::dispatch(SlicePtr slice, AwaitedSlices* awaited) {
  const Piece& p = slice->piece;
  const uint64_t span = span_of(p.bytes, p.rows, p.remote_stride);
  if (const auto range = slice->peer->buffer(p.remote, span); !range) {
    if (!refresh(slice, range.error())) complete(std::move(slice), fail(range.error()));
    return;
  }
  if (Transport* next = next_transport(*slice)) {
    if (awaited != nullptr)
      awaited->add(*next, std::move(slice));
    else
      next->submit(std::move(slice));
    return;
  }
  const std::string node = slice->peer->descriptor.node;
  complete(std::move(slice),
           fail(Code::kUnavailable, "no allowed transport reaches the memory of %s", node.c_str()));
}

void Engine::Impl::finished(SlicePtr slice, Result<> outcome) {
  const Counters& count = counters_of(*slice);
  count.slices->add();
  if (slice->carried) count.carried->add();
  if (outcome && !slice->advances_guard) count.bytes->add(slice->piece.total());
  if (!outcome) count.failures->add();
  if (!outcome) slice->digest.reset();
  if (!outcome && !slice->cancelled->load()) {
    const Error& error = outcome.error();
    if (error.code == Code::kStale && refresh(slice, error)) return;
    // Only this slice moves to the next transport; bytes that arrived stay.
    const auto moves = static_cast<uint32_t>(std::popcount(slice->tried_transports)) - 1;
    if (worth_another(error.code) && moves < options.max_failover_attempts && !ending()) {
      const uint32_t from = slice->transport;
      if (Transport* next = next_transport(*slice)) {
        // The submitting thread may have left, so nothing waits for this slice or follows it.
        slice->awaited = slice->more_follow = false;
        failovers(from, slice->transport).add();
        log_debug("xfer", "slice to %s failed, trying %s: %s", slice->peer->descriptor.node.c_str(),
                  next->name(), error.what.c_str());
        next->submit(std::move(slice));
        return;
      }
    }
    // The process may have restarted at the same control address, with other data addresses and
    // another secret.
    const bool gone = error.code == Code::kUnavailable || error.code == Code::kDenied;
    if (gone && refresh(slice, error)) return;
  }
  complete(std::move(slice), outcome);
}

// Fails a task whose bytes would be split between two processes of a node.
Result<> Engine::Impl::of_one_process(const Slice& slice) {
  const uint64_t now = slice.peer->instance;
  uint64_t before = 0;
  if (slice.task->instance.compare_exchange_strong(before, now) || before == now) return {};
  return fail(Code::kStale, "%s was restarted during this transfer",
              slice.peer->descriptor.node.c_str());
}

// Completes a slice with its outcome. The last slice ends its task, the last task its batch.
void Engine::Impl::complete(SlicePtr slice, Result<> outcome) {
  if (outcome) outcome = of_one_process(*slice);
  const TaskPtr task = std::move(slice->task);  // keeps the batch until this call ends
  const Counters& count = counters_of(*slice);
  const uint64_t at = slice->task_offset, bytes = slice->piece.total();
  const std::optional<uint64_t> digest = slice->digest;
  slice.reset();
  if (task->batch == nullptr)
    task->completed(outcome);
  else if (ended(task, at, bytes, digest, outcome))
    count.requests->add(task->count);
}

// Records the end of a part of a task. Returns: the whole task is done and succeeded.
bool Engine::Impl::ended(const TaskPtr& task, uint64_t at, uint64_t bytes,
                         std::optional<uint64_t> digest, const Result<>& outcome) {
  Batch& batch = *task->batch;
  std::vector<TaskPtr> to_notify;
  std::vector<std::function<void()>> callbacks;
  bool good = false;
  {
    Lock lock(batch.mutex);
    if (digest) batch.items_of(*task)[0].digest = digest;  // of the whole of its one request
    if (!batch.slice_ended(*task, at, bytes, outcome)) return false;
    good = task->error.what.empty();
    size_t over = 1;
    if (CompletionNotification* const notice = task->notice) {
      if (!good && notice->error.what.empty())
        notice->error = {task->error.code, "not notified: " + task->error.what};
      const bool all = --notice->data_left == 0;
      for (Task* send : all ? notice->sends : std::vector<Task*>{}) {
        if (notice->error.what.empty())
          to_notify.emplace_back(task, send);
        else
          over += batch.slice_ended(*send, 0, 0, fail(notice->error)) ? 1 : 0;
      }
    }
    if (batch.unfinished.fetch_sub(over, std::memory_order_acq_rel) == over) {
      batch.ended.notify_all();
      callbacks.swap(batch.all_done);
    }
  }
  for (const TaskPtr& send : to_notify) send_notification(send, *task->notice);
  if (!callbacks.empty()) run_or_defer(std::move(callbacks));
  return good;
}

void Engine::Impl::run_or_defer(std::vector<std::function<void()>> callbacks) {
  if (submitting) {
    Lock lock(mutex);
    if (!stopping) {
      for (auto& callback : callbacks) defer(std::move(callback));
      return;
    }
  }
  for (auto& callback : callbacks) callback();
}

bool Engine::Impl::ending() const {
  Lock lock(mutex);
  return stopping;
}

Time Engine::Impl::after(Duration budget, Time now) { return end_of(budget, now); }

Result<> Engine::Impl::wait(Batch& batch, Duration budget, const std::atomic<bool>* stopped) {
  const Duration step = stopped == nullptr ? kWaitStep : kStopStep;
  if (!spin_until_done(batch)) {
    const Time deadline = after(budget, clock.now());
    Lock lock(batch.mutex);
    while (batch.unfinished > 0) {
      const Duration left = deadline - clock.now();
      if (left.count() <= 0)
        return fail(Code::kTimeout, "%zu transfers are not done after %s", batch.unfinished.load(),
                    rounded_text(budget).c_str());
      if (stopped != nullptr && stopped->load()) return fail(Code::kUnavailable, "cancelled");
      batch.ended.wait_for(batch.mutex, std::min(left, step));
    }
  }
  if (!batch.failed.load(std::memory_order_relaxed)) return {};
  Lock lock(batch.mutex);
  for (const Item& item : batch.items)
    if (item.state != TransferState::kCompleted) return fail(item.task->error);
  return {};
}

// The request's deadline ends the wait; this budget is only a backstop.
Result<> Engine::Impl::outcome_of(Batch& batch, Duration budget, const std::atomic<bool>* stopped) {
  Result<> outcome = wait(batch, backstop(budget, options), stopped);
  cancel(batch);
  return outcome;
}

void Engine::Impl::cancel(Batch& batch) {
  if (batch.unfinished.load(std::memory_order_acquire) == 0) return;
  Lock lock(batch.mutex);
  for (const Item& item : batch.items) {
    if (xfer::finished(item.state)) continue;
    item.task->wanted_cancel = true;
    item.task->cancelled.store(true);
  }
  // Transports check the flag before each slice, and several times a second inside one.
  while (batch.unfinished > 0) batch.ended.wait(batch.mutex);
}

// Copies a small request whose memory this thread has cached. Takes no lock and no reference.
bool Engine::Impl::try_cached_copy(const Request& request, Duration budget) {
  if (host_copies == nullptr || budget.count() <= 0 || registry->has_devices() || !check(request))
    return false;
  const bool any_time = request.deadline == Time::max();
  return host_copies->copy_again(request, any_time ? clock.coarse_now() : clock.now());
}

// Copies memory of this host on the caller's thread, without batch or slices. False: submit it,
// which also handles errors.
bool Engine::Impl::try_inline_copy(const Request& request, const PeerPtr& peer, Time now,
                                   uint64_t together) {
  if (host_copies == nullptr || !host_copies->copy_now(request, peer, now, together)) return false;
  const Counters& count = peer->same_process ? self_counts : counts[0];
  count.slices->add();
  count.bytes->add(request.bytes * request.rows);
  count.requests->add();
  return true;
}

// Moves a few bytes of a waiting caller without a queue, if their transport can. None: submit them.
std::optional<Result<>> Engine::Impl::try_inline(const Request& r, const PeerPtr& peer,
                                                 Duration budget,
                                                 const std::atomic<bool>* stopped) {
  if (r.rows != 1 || r.bytes > kTryInlineBytes || r.guard.offset != Guard::kNone ||
      registry->has_devices())
    return std::nullopt;
  for (uint32_t i = 0; i < transports.size(); ++i) {
    if (!transports[i]->reaches(*peer, r.offset, r.op)) continue;
    const MemoryLocation memory = host_location(r.local);
    TaskPtr task;
    const auto begin = [&] {
      task = single_task(r.segment, r.bytes);
      task->slices_left = 1;
      SlicePtr slice = slice_of(task, r, peer, {0, r.offset, r.bytes, 1, 0, 0});
      slice->memory = memory;
      slice->tried_transports = 1u << i;
      slice->transport = i;
      return slice;
    };
    switch (transports[i]->try_inline(r, peer, memory, std::ref(begin))) {
      case Transport::InlineResult::kDeclined: return std::nullopt;
      case Transport::InlineResult::kInFlight: return outcome_of(*task->batch, budget, stopped);
      case Transport::InlineResult::kDone: break;
    }
    counts[i].slices->add();
    counts[i].bytes->add(r.bytes);
    counts[i].requests->add();
    return Result<>{};
  }
  return std::nullopt;
}

}  // namespace mc::xfer
