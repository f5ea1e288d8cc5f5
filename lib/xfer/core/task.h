// What a batch is made of: items (the requests, as submitted), and tasks (what is moved: one item,
// or several that were merged). Slices belong to tasks. Private to the engine.
//
// Thread: a batch's members belong to its mutex; the atomics may be read without it.
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

// What a peer, or several, are told when the tasks before it are done. Each telling is a task too.
struct CompletionNotification {
  Notification notification;
  Time deadline = Time::max();
  std::vector<Task*> sends;
  size_t data_left = 0;
  Error error;  // of the first task that failed
};

struct Task {
  Batch* batch = nullptr;  // which keeps it; null: `completed` is called instead
  std::function<void(const Result<>&)> completed;
  SegmentHandle segment = 0;
  size_t first = 0, count = 1;  // its items
  size_t slices_left = 0;
  bool awaited = false;  // by the thread that submits it
  bool wanted_cancel = false;
  Error error;                               // the first, if any
  CompletionNotification* notice = nullptr;  // waits for this task
  // The process that its bytes are in, or came from; 0: none moved yet. Never two of them.
  std::atomic<uint64_t> instance{0};
  std::atomic<bool> cancelled{false};
};
using TaskPtr = std::shared_ptr<Task>;  // shares the ownership of its batch

struct Item {
  TransferState state = TransferState::kPending;
  uint64_t bytes = 0, done = 0;
  uint64_t at = 0;  // where its bytes begin among those of its task
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

  // A task that moves the items added to it from here on, before the next begins.
  void begin(Task& task, SegmentHandle segment) MC_REQUIRES(mutex);
  void add(Task& task, uint64_t bytes) MC_REQUIRES(mutex);
  // The items that are added next were submitted in another order: the n-th of them is request
  // `order[n]` of its submit. Empty: in this one.
  void reorder(std::span<const uint32_t> order) MC_REQUIRES(mutex);
  // The `index`-th request submitted; null: there is none.
  const Item* submitted(size_t index) const MC_REQUIRES(mutex);
  // One slice of `task` ended: `bytes` from `at` on were moved, or not. True when that was the
  // task's last slice.
  bool slice_ended(Task& task, uint64_t at, uint64_t bytes, const Result<>& outcome)
      MC_REQUIRES(mutex);
  std::span<Item> items_of(const Task& task) MC_REQUIRES(mutex);

 private:
  std::vector<uint32_t> places_ MC_GUARDED_BY(mutex);  // of requests among the items; short: as is
  void credit(std::span<Item> of, uint64_t at, uint64_t bytes);
};

// The only task, with its one item, of a batch that it keeps.
TaskPtr single_task(SegmentHandle segment, uint64_t bytes);

}  // namespace mc::xfer
