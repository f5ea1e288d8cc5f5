// Runs libevent on a thread, with a queue in each direction to the owner's loop. Both queues are
// batched: the first task put into an empty queue wakes the other side; later ones need no wake-up.
//
// Thread: constructed, started and stopped by the loop's; each member says which threads may call
// it.
#pragma once
#include <sys/time.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "io/fd.h"
#include "io/loop.h"

struct event;
struct event_base;

namespace mc::http {

timeval to_timeval(Duration d);

class TaskQueue {
 public:
  using Task = std::function<void()>;
  bool put(Task task);  // true: it was empty, so wake the other side; any thread
  void run();           // the receiving side: everything waiting, in order, until closed
  void close();         // drops what waits, now and later; any thread

 private:
  bool is_closed();
  Mutex mutex_;
  std::vector<Task> tasks_ MC_GUARDED_BY(mutex_);
  bool scheduled_ MC_GUARDED_BY(mutex_) = false;  // the other side was woken and has not run yet
  bool closed_ MC_GUARDED_BY(mutex_) = false;
};

class EventThread {
 public:
  using Task = TaskQueue::Task;
  // Tasks for the thread. It may outlive the thread: then it drops tasks. Any thread.
  struct Inbox {
    io::Fd wake;
    TaskQueue queue;
    void post(Task task);
  };

  explicit EventThread(io::Loop& loop);
  ~EventThread();  // stops, then frees the event base: free its events before
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

  void start();
  void stop();  // joins; what is queued in either direction is dropped, now and later

  const std::shared_ptr<Inbox>& inbox() const { return inbox_; }
  void to_loop(Task task);                          // from the event thread
  event_base* base() const { return base_; }        // the event thread's once started
  Time now() const { return loop_.clock().now(); }  // any thread

 private:
  void wake_loop();
  static void on_wake(int fd, short, void* self);
  static void on_retry(int, short, void* self);

  io::Loop& loop_;
  event_base* base_ = nullptr;
  event* wake_event_ = nullptr;
  event* retry_event_ = nullptr;  // the loop's own queue was full: wakes it again soon
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::shared_ptr<TaskQueue> outbox_ = std::make_shared<TaskQueue>();
  std::thread thread_;
};

}  // namespace mc::http
