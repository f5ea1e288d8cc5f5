// A batch consists of items (submitted requests) and tasks (merged requests). A task moves one item
// or several, in slices. Private to the engine.
//
// Thread: the batch's mutex guards its members; the atomics may be read without it.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "xfer/core/transport.h"

namespace mc::xfer {

struct Batch;
struct Task;

// A notification that peers receive when the tasks before it are done. Each delivery is a task too.
struct CompletionNotification {
  Notification notification;
  Time deadline = Time::max();
  std::vector<Task*> sends;
  size_t data_left = 0;
  Error error;  // of the first task that failed
};

struct Task {
  Batch* batch = nullptr;  // its owner; null: `completed` is called instead
  std::function<void(const Result<>&)> completed;
  SegmentHandle segment = 0;
  size_t first = 0, count = 1;  // its items
  size_t slices_left = 0;
  bool awaited = false;  // by the thread that submits it
  bool wanted_cancel = false;
  Error error;                               // the first, if any
  CompletionNotification* notice = nullptr;  // waits for this task
  // The peer process that its bytes went to, or came from: one only. 0: none moved yet.
  std::atomic<uint64_t> instance{0};
  std::atomic<bool> cancelled{false};
};
using TaskPtr = std::shared_ptr<Task>;  // shares the ownership of its batch

struct Item {
  TransferState state = TransferState::kPending;
  uint64_t bytes = 0, done = 0;
  uint64_t at = 0;  // offset in its task
  Task* task = nullptr;
  std::optional<uint64_t> digest{};
};

struct Batch {
  Mutex mutex;
  Condition ended;  // notified when unfinished becomes 0
  std::vector<Item> items MC_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Task[]>> tasks MC_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<CompletionNotification>> notices MC_GUARDED_BY(mutex);
  std::vector<std::function<void()>> all_done MC_GUARDED_BY(mutex);
  std::atomic<size_t> unfinished{0};  // tasks
  std::atomic<bool> failed{false};    // any of them

  // Begins a task; add() appends its items. Requires: the task before has all of its items.
  void begin(Task& task, SegmentHandle segment) MC_REQUIRES(mutex);
  void add(Task& task, uint64_t bytes) MC_REQUIRES(mutex);
  // Says that the items added next were submitted in another order: the n-th is request `order[n]`
  // of its submit. Empty: in this order.
  void reorder(std::span<const uint32_t> order) MC_REQUIRES(mutex);
  // Returns: the item of the `index`-th request submitted; null: there is none.
  const Item* submitted(size_t index) const MC_REQUIRES(mutex);
  // Records the end of a slice of `task`, which moved `bytes` from `at` on, or failed. Returns: it
  // was the task's last slice.
  bool slice_ended(Task& task, uint64_t at, uint64_t bytes, const Result<>& outcome)
      MC_REQUIRES(mutex);
  std::span<Item> items_of(const Task& task) MC_REQUIRES(mutex);

 private:
  std::vector<uint32_t> places_
      MC_GUARDED_BY(mutex);  // item of each request; beyond its end: the same index
  void credit(std::span<Item> of, uint64_t at, uint64_t bytes);
};

// Returns: the only task, of one item, of a new batch. The pointer keeps the batch.
TaskPtr single_task(SegmentHandle segment, uint64_t bytes);

}  // namespace mc::xfer
