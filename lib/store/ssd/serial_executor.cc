#include "store/ssd/serial_executor.h"

#include <sys/eventfd.h>

namespace mc::store::ssd {

SerialExecutor::SerialExecutor() : thread_([this] { run(); }) {}

SerialExecutor::~SerialExecutor() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SerialExecutor::post(Task task) {
  {
    const Lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void SerialExecutor::run() {
  for (;;) {
    Task task;
    {
      const Lock lock(mutex_);
      while (!stopping_ && tasks_.empty()) changed_.wait(mutex_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

CompletionQueue::CompletionQueue(io::Loop& loop)
    : loop_(loop), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  watch_ = loop_.watch_fd(event_.get(), [this] { run(); });
}

CompletionQueue::~CompletionQueue() { loop_.unwatch(watch_); }

void CompletionQueue::post(Task task) {
  {
    const Lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  ::eventfd_write(event_.get(), 1);
}

void CompletionQueue::run() {
  eventfd_t count = 0;
  ::eventfd_read(event_.get(), &count);
  std::vector<Task> tasks;
  {
    const Lock lock(mutex_);
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) task();
}

}  // namespace mc::store::ssd
