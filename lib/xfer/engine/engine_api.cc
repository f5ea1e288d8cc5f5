// Public functions that move bytes: batches and synchronous transfers.
#include <algorithm>

#include "xfer/engine/engine_impl.h"

namespace mc::xfer {
namespace {

// The slice that sets the guard word, of a task of its own.
SlicePtr advance_of(const Engine::GuardAdvance& guard, const PeerPtr& peer, const TaskPtr& task,
                    Time deadline) {
  auto slice = std::make_unique<Slice>();
  task->slices_left = 1;
  slice->peer = peer;
  slice->op = Op::kWrite;
  slice->advances_guard = true;
  slice->priority = Priority::kHigh;  // eight bytes that other requests wait for
  slice->piece = {0, guard.offset, 8, 1, 0, 0};
  slice->guard = {guard.offset, guard.value};
  slice->deadline = deadline;
  slice->task = task;
  slice->cancelled = &task->cancelled;
  return slice;
}

Error no_batch(BatchId id) { return {Code::kNotFound, "no batch " + std::to_string(id)}; }

}  // namespace

BatchId Engine::allocate_batch() {
  auto batch = std::make_shared<Batch>();
  Lock lock(impl_->batches_mutex);
  const BatchId id = impl_->next_batch++;
  impl_->batches.emplace(id, std::move(batch));
  return id;
}

Result<> Engine::submit(BatchId id, std::span<const Request> requests,
                        std::function<void()> all_done) {
  const auto batch = impl_->find(id);
  if (batch == nullptr) return fail(no_batch(id));
  MC_TRY(const auto admitted, impl_->admit(requests));
  return impl_->submit(batch, requests, admitted, {.all_done = std::move(all_done)});
}

Result<> Engine::submit(BatchId id, std::span<const Request> requests, const Notification& after,
                        std::function<void()> all_done) {
  const auto batch = impl_->find(id);
  if (batch == nullptr) return fail(no_batch(id));
  MC_TRY(const auto admitted, impl_->admit(requests));
  return impl_->submit(batch, requests, admitted,
                       {.after = &after, .all_done = std::move(all_done)});
}

Result<> Engine::submit_awaited(BatchId id, std::span<const Request> requests, Duration budget) {
  const auto batch = impl_->find(id);
  if (batch == nullptr) return fail(no_batch(id));
  MC_TRY(const auto admitted, impl_->admit(requests));
  return impl_->submit(batch, requests, admitted, {.awaited_for = budget});
}

Status Engine::status(BatchId id, size_t index) const {
  const auto batch = impl_->find(id);
  if (batch != nullptr) {
    Lock lock(batch->mutex);
    if (const Item* item = batch->submitted(index)) {
      const bool failed = xfer::finished(item->state) && item->state != TransferState::kCompleted;
      return {item->state, item->done, failed ? item->task->error : Error{}, item->digest};
    }
  }
  return {
      TransferState::kFailed,
      0,
      {Code::kNotFound, "no transfer " + std::to_string(index) + " in batch " + std::to_string(id)},
      {}};
}

BatchSummary Engine::summary(BatchId id) const {
  const auto batch = impl_->find(id);
  BatchSummary out;
  if (batch == nullptr) return out;
  Lock lock(batch->mutex);
  out.requests = batch->items.size();
  for (size_t i = 0; i < out.requests; ++i) {
    const Item& item = *batch->submitted(i);
    out.bytes_done += item.done;
    if (item.state == TransferState::kCompleted) continue;
    if (out.failed++ == 0 && xfer::finished(item.state)) out.error = item.task->error;
  }
  return out;
}

Result<> Engine::wait(BatchId id, Duration budget) {
  const auto batch = impl_->find(id);
  if (batch == nullptr) return fail(no_batch(id));
  return impl_->wait(*batch, budget);
}

void Engine::cancel(BatchId id) {
  if (const auto batch = impl_->find(id)) impl_->cancel(*batch);
}

void Engine::free_batch(BatchId id) {
  const auto batch = impl_->find(id);
  if (batch == nullptr) return;
  impl_->cancel(*batch);
  Lock lock(impl_->batches_mutex);
  impl_->batches.erase(id);
}

Result<> Engine::transfer_sync(const Request& request, Duration budget,
                               const std::atomic<bool>* stopped) {
  if (impl_->try_cached_copy(request, budget)) return {};
  const Time now = impl_->clock.now();
  Request bounded = request;
  bounded.deadline = std::min(request.deadline, Impl::after(budget, now));
  PeerPtr peer;
  {
    Lock lock(impl_->mutex);
    MC_TRY(peer, impl_->peer_for(bounded));
  }
  if (impl_->registry->device_at(bounded.local) == 0 && impl_->try_inline_copy(bounded, peer, now))
    return {};
  if (auto carried = impl_->try_inline(bounded, peer, budget, stopped)) return *carried;
  const TaskPtr task = single_task(bounded.segment, bounded.bytes * bounded.rows);
  task->awaited = true;
  impl_->launch(task, bounded, peer, bounded.bytes * bounded.rows);
  impl_->flush();
  return impl_->outcome_of(*task->batch, budget, stopped);
}

Result<> Engine::advance_guard(SegmentHandle segment, uint64_t offset, uint64_t value,
                               Duration budget) {
  GuardAdvance one{segment, offset, value};
  advance_guards({&one, 1}, budget);
  return std::move(one.outcome);
}

void Engine::advance_guards(std::span<GuardAdvance> guards, Duration budget) {
  std::vector<TaskPtr> tasks(guards.size());
  const Time now = impl_->clock.now(), deadline = Impl::after(budget, now);
  AwaitedSlices awaited(now + std::clamp(budget, Duration::zero(), AwaitedSlices::kTime));
  for (size_t i = 0; i < guards.size(); ++i) {
    GuardAdvance& g = guards[i];
    Result<PeerPtr> peer = fail(Code::kInvalid, "guard at offset %llu is not 8-byte aligned",
                                static_cast<unsigned long long>(g.offset));
    if (g.offset % 8 == 0) {
      Lock lock(impl_->mutex);
      peer = impl_->peer_of(g.segment);
    }
    if (!peer) {
      g.outcome = fail(peer.error());
      continue;
    }
    tasks[i] = single_task(g.segment, 8);
    impl_->dispatch(advance_of(g, *peer, tasks[i], deadline), &awaited);
  }
  awaited.submit();
  for (size_t i = 0; i < guards.size(); ++i)
    if (tasks[i] != nullptr) guards[i].outcome = impl_->outcome_of(*tasks[i]->batch, budget);
}

bool Engine::fence(std::span<FencedRange> ranges) {
  if (ranges.empty()) return true;
  for (FencedRange& range : ranges) range.done = true;
  impl_->registry->fence(ranges);
  if (impl_->tcp_server != nullptr) impl_->tcp_server->fence(ranges);
  if (impl_->rdma_offer != nullptr) impl_->rdma_offer->fence(ranges);
  return std::all_of(ranges.begin(), ranges.end(), [](const FencedRange& r) { return r.done; });
}

}  // namespace mc::xfer
