// Runs a service's event loop: one thread owns the state and waits for events. It waits on ZeroMQ
// sockets, file descriptors, the next timer and work posted by other threads.
//
//   io::Loop loop(clock);
//   loop.every(1s, [&] { machine.tick(loop.now()); });
//   loop.run();            // until stop()
//
// Thread: all members belong to the thread that runs run(), before it to the one that sets up.
// post() and stop() may be called from any thread.
#pragma once
#include <poll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/time.h"
#include "io/fd.h"

namespace mc::io {

class Loop {
 public:
  using Handle = uint64_t;  // of a watch or a timer; 0 is never one
  using Task = std::function<void()>;

  explicit Loop(const Clock& clock);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  Time now() const { return now_; }  // as of this turn; the same for everything in it
  const Clock& clock() const { return clock_; }

  // Calls `ready` whenever the descriptor can be read (level-triggered), until unwatch().
  Handle watch_fd(int fd, Task ready);
  // The same for a ZeroMQ socket; `ready` must receive until it would block. `uses`: raised by each
  // call on the socket, so that the loop need not look at one that was not used; null: it may be
  // used at any time.
  using Uses = std::shared_ptr<const uint64_t>;
  Handle watch_socket(void* zmq_socket, Task ready, Uses uses = nullptr);
  // The same for memory that has no descriptor. The loop calls `look` before each wait; it may take
  // a few microseconds. If `look` returns true, the loop calls `ready` instead of waiting. While
  // memory keeps it busy, it asks for the input of descriptors and sockets less often: a system
  // call costs as much as a message.
  Handle watch_memory(std::function<bool()> look, Task ready);
  void unwatch(Handle handle);

  Handle at(Time when, Task task);
  Handle after(Duration delay, Task task) { return at(clock_.now() + delay, std::move(task)); }
  Handle every(Duration period, Task task);  // first after one period; never bunches up
  void cancel(Handle timer);                 // does nothing when it ran already

  // Runs `task` on the loop's thread, in order of posting. False when kPostedMax tasks wait
  // already: the loop is overloaded, and the caller should answer busy. Any thread.
  bool post(Task task);
  void stop();  // run() returns after the current turn; any thread

  // Turns until stop(). Errors: kInternal when polling itself fails.
  Result<> run();
  // One turn, waiting at most `wait`: for tests and for setting up.
  Result<> turn(Duration wait);

  static constexpr size_t kPostedMax = 1 << 16;

 private:
  struct Watch {
    Handle handle;
    int fd;
    void* socket;  // null: only a descriptor
    std::shared_ptr<Task> ready;
    Uses uses;
    uint64_t looked_at = UINT64_MAX;  // its uses at the last look
    bool input = false;               // of a socket, as found in this turn
    bool looked() const { return uses != nullptr && *uses == looked_at; }
    Result<> look();
  };
  struct Timer {
    Handle handle;
    Duration period;  // zero: once
    std::shared_ptr<Task> task;
  };
  struct MemoryWatch {
    Handle handle;
    std::shared_ptr<std::function<bool()>> look;
    std::shared_ptr<Task> ready;
  };
  Handle add_watch(int fd, void* socket, Task ready, Uses uses);
  using Ready = std::vector<std::pair<Handle, std::shared_ptr<Task>>>;
  Ready ready_now();
  Result<bool> ask_sockets();
  Result<bool> wait_for(Duration wait, Ready& ready);
  bool watches(Handle handle) const;
  void run_posted();
  void run_timers();

  const Clock& clock_;
  Time now_;
  Handle next_handle_ = 1;
  std::vector<Watch> watches_;
  std::vector<MemoryWatch> memory_watches_;
  std::vector<pollfd> descriptors_;    // of one turn
  uint32_t hot_turns_ = 0;             // turns for memory
  Time polled_{};                      // when it last asked for the input of descriptors
  std::multimap<Time, Timer> timers_;  // by due time, then insertion
  std::map<Handle, Time> due_;         // due time of each timer in timers_
  Fd wake_;                            // eventfd: posted work or stop
  Mutex mutex_;
  std::vector<Task> posted_ MC_GUARDED_BY(mutex_);
  std::atomic<bool> has_posted_{false};  // for turns that do not ask for descriptors
  bool stopped_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mc::io
