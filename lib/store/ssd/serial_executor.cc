#include "store/ssd/serial_executor.h"

#include <sys/eventfd.h>

namespace mc::store::ssd {

Lane::Lane() : thread_([this] { run(); }) {}

Lane::~Lane() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Lane::post(Task task) {
  {
    const Lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Lane::run() {
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

Mailbox::Mailbox(io::Loop& loop) : loop_(loop), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  watch_ = loop_.watch_fd(event_.get(), [this] { run(); });
}

Mailbox::~Mailbox() { loop_.unwatch(watch_); }

void Mailbox::post(Task task) {
  {
    const Lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  ::eventfd_write(event_.get(), 1);
}

void Mailbox::run() {
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
