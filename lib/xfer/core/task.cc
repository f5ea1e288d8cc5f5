#include "xfer/core/task.h"

#include <algorithm>

namespace mc::xfer {

std::span<Item> Batch::items_of(const Task& task) {
  return std::span(items).subspan(task.first, task.count);
}

// Adds bytes to the items that they belong to. Items lie one after another in the task's bytes.
void Batch::credit(std::span<Item> of, uint64_t at, uint64_t bytes) {
  auto item = std::upper_bound(of.begin(), of.end(), at,
                               [](uint64_t a, const Item& i) { return a < i.at; });
  --item;  // the first begins at 0
  for (const uint64_t end = at + bytes; at < end; ++item) {
    const uint64_t here = std::min(end, item->at + item->bytes) - at;
    item->done += here;
    at += here;
    if (item->done == item->bytes) item->state = TransferState::kCompleted;
  }
}

void Batch::begin(Task& task, SegmentHandle segment) {
  task.batch = this;
  task.segment = segment;
  task.first = items.size();
  task.count = 0;
}

void Batch::add(Task& task, uint64_t bytes) {
  const uint64_t at = task.count++ == 0 ? 0 : items.back().at + items.back().bytes;
  items.push_back({TransferState::kPending, bytes, 0, at, &task, {}});
}

void Batch::reorder(std::span<const uint32_t> order) {
  if (order.empty()) return;
  items.reserve(std::max(items.size() + order.size(), 2 * items.capacity()));
  for (size_t i = places_.size(); i < items.size(); ++i)
    places_.push_back(static_cast<uint32_t>(i));
  const size_t base = items.size();
  places_.resize(base + order.size());
  for (size_t i = 0; i < order.size(); ++i)
    places_[base + order[i]] = static_cast<uint32_t>(base + i);
}

const Item* Batch::submitted(size_t index) const {
  const size_t place = index < places_.size() ? places_[index] : index;
  return place < items.size() ? &items[place] : nullptr;
}

bool Batch::slice_ended(Task& task, uint64_t at, uint64_t bytes, const Result<>& outcome) {
  if (!outcome) {
    if (task.error.what.empty()) task.error = outcome.error();
    task.cancelled.store(true);  // its other slices need not move
  } else {
    credit(items_of(task), at, bytes);
  }
  if (--task.slices_left > 0) return false;
  if (!task.error.what.empty()) {
    const Code code = task.error.code;
    const TransferState fate = code == Code::kTimeout ? TransferState::kTimedOut
                               : code == Code::kUnavailable && task.wanted_cancel
                                   ? TransferState::kCancelled
                                   : TransferState::kFailed;
    for (Item& item : items_of(task))
      if (item.state != TransferState::kCompleted) item.state = fate;
    failed.store(true, std::memory_order_relaxed);
  } else {
    for (Item& item : items_of(task)) item.state = TransferState::kCompleted;
  }
  return true;
}

TaskPtr single_task(SegmentHandle segment, uint64_t bytes) {
  struct Single : Batch {
    Task only;
  };
  auto batch = std::make_shared<Single>();
  batch->unfinished.store(1, std::memory_order_relaxed);
  Lock lock(batch->mutex);
  batch->begin(batch->only, segment);
  batch->add(batch->only, bytes);
  return TaskPtr(batch, &batch->only);
}

}  // namespace mc::xfer
