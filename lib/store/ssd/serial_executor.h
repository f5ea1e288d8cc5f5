// Runs blocking work off the loop. A SerialExecutor is a thread that runs its tasks in order. A
// CompletionQueue runs their results on the loop's thread.
//
// Thread: post() any; the rest its owner's.
#pragma once
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "io/fd.h"
#include "io/loop.h"

namespace mc::store::ssd {

using Task = std::function<void()>;

class SerialExecutor {
 public:
  SerialExecutor();
  ~SerialExecutor();  // finishes the current task and drops the others
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;
  void post(Task task);

 private:
  void run();
  Mutex mutex_;
  Condition changed_;
  std::deque<Task> tasks_ MC_GUARDED_BY(mutex_);
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class CompletionQueue {
 public:
  explicit CompletionQueue(io::Loop& loop);
  ~CompletionQueue();  // drops queued tasks
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;
  void post(Task task);

 private:
  void run();
  io::Loop& loop_;
  io::Fd event_;
  io::Loop::Handle watch_;
  Mutex mutex_;
  std::vector<Task> tasks_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::store::ssd
