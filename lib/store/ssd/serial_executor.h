// Work that blocks, off the loop: a Lane is a thread that does its tasks in order; a Mailbox brings
// what they found back to the loop's thread.
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

class Lane {
 public:
  Lane();
  ~Lane();  // finishes the task it is at and drops the others
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  void post(Task task);

 private:
  void run();
  Mutex mutex_;
  Condition changed_;
  std::deque<Task> tasks_ MC_GUARDED_BY(mutex_);
  bool stopping_ MC_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

class Mailbox {
 public:
  explicit Mailbox(io::Loop& loop);
  ~Mailbox();  // drops what is in it
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;
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
