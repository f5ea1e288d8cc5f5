#include "http/event_thread.h"

#include <event2/event.h>
#include <sys/eventfd.h>

#include <csignal>

#include "base/result.h"

namespace mc::http {

timeval to_timeval(Duration d) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(d).count();
  return {static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
}

bool TaskQueue::put(Task task) {
  Lock lock(mutex_);
  if (closed_) return false;
  tasks_.push_back(std::move(task));
  return !std::exchange(scheduled_, true);
}
void TaskQueue::run() {
  std::vector<Task> tasks;
  {
    Lock lock(mutex_);
    scheduled_ = false;
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) {
    if (is_closed()) return;  // a task of this batch ended the owner
    std::exchange(task, nullptr)();
  }
}
bool TaskQueue::is_closed() {
  Lock lock(mutex_);
  return closed_;
}
void TaskQueue::close() {
  std::vector<Task> dropped;  // destroyed with the lock free: a task may own an Exchange
  Lock lock(mutex_);
  closed_ = true;
  dropped.swap(tasks_);
}

void EventThread::Inbox::post(Task task) {
  if (queue.put(std::move(task))) eventfd_write(wake.get(), 1);
}

EventThread::EventThread(io::Loop& loop) : loop_(loop), base_(event_base_new()) {
  inbox_->wake.reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  MC_CHECK(inbox_->wake && base_ != nullptr);
  wake_event_ = event_new(base_, inbox_->wake.get(), EV_READ | EV_PERSIST, on_wake, this);
  retry_event_ = event_new(base_, -1, 0, on_retry, this);
  MC_CHECK(wake_event_ != nullptr && retry_event_ != nullptr);
  MC_CHECK(event_add(wake_event_, nullptr) == 0);
}

EventThread::~EventThread() {
  stop();
  event_free(wake_event_);
  event_free(retry_event_);
  event_base_free(base_);
}

void EventThread::start() {
  thread_ = std::thread([this] {
    // libevent writes to sockets whose peer is gone: that is an error, and no signal that ends the
    // process, whatever its owner does about SIGPIPE.
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    event_base_loop(base_, EVLOOP_NO_EXIT_ON_EMPTY);
  });
}

void EventThread::stop() {
  outbox_->close();
  if (thread_.joinable()) {
    inbox_->post([this] { event_base_loopbreak(base_); });
    thread_.join();
  }
  inbox_->queue.close();
}

void EventThread::to_loop(Task task) {
  if (outbox_->put(std::move(task))) wake_loop();
}

void EventThread::wake_loop() {
  if (loop_.post([queue = outbox_] { queue->run(); })) return;
  const timeval soon{0, 1000};
  event_add(retry_event_, &soon);
}
void EventThread::on_retry(int, short, void* self) { static_cast<EventThread*>(self)->wake_loop(); }

void EventThread::on_wake(int fd, short, void* self) {
  eventfd_t n = 0;
  eventfd_read(fd, &n);
  static_cast<EventThread*>(self)->inbox_->queue.run();
}

}  // namespace mc::http
