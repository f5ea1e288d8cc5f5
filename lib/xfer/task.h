// A submitted request and the batch it belongs to. Private to the engine.
//
// Thread: all but `cancelled` belong to the engine's mutex.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "xfer/transport.h"

namespace mc::xfer {

struct Batch;

struct Task {
  Request request;
  std::weak_ptr<Batch> batch;
  Status status;
  size_t slices_left = 0;
  bool wanted_cancel = false;
  std::atomic<bool> cancelled{false};
};
using TaskPtr = std::shared_ptr<Task>;

struct Batch {
  Condition ended;  // notified when unfinished becomes 0
  std::vector<TaskPtr> tasks;
  size_t unfinished = 0;
  std::vector<std::function<void()>> all_done;
};

}  // namespace mc::xfer
