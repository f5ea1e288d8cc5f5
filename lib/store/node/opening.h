// Runs the slow part of a start on a thread of its own. To find masters, to allocate memory and to
// scan disks takes seconds or minutes, in which the loop answers /live, /ready and signals.
//
// Thread: the loop's. The work and what it returns are the thread's until it has ended; then its
// result goes to the loop.
#pragma once
#include <sys/eventfd.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/result.h"
#include "io/fd.h"
#include "io/loop.h"

namespace mc::store {

template <class T>
class Opening {
 public:
  using Work = std::function<Result<T>()>;
  using Done = std::function<void(Result<T>)>;
  // Runs `work` once, on the thread, then `done` once, on the loop, which may destroy this.
  // Requires: what `work` uses outlives this. `what` it does is for /ready.
  Opening(io::Loop& loop, std::string what, Work work, Done done)
      : loop_(loop),
        what_(std::move(what)),
        done_(std::move(done)),
        ended_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    MC_CHECK(ended_);
    watch_ = loop_.watch_fd(ended_.get(), [this] { finish(); });
    thread_ = std::thread([this, work = std::move(work)] {
      result_.emplace(work());
      eventfd_write(ended_.get(), 1);
    });
  }
  ~Opening() {  // waits for the thread; `done` is not called any more
    loop_.unwatch(watch_);
    if (thread_.joinable()) thread_.join();
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  bool running() const { return static_cast<bool>(done_); }
  const std::string& what() const { return what_; }

 private:
  void finish() {
    loop_.unwatch(watch_);
    thread_.join();
    const Done done = std::exchange(done_, nullptr);
    done(std::move(*result_));  // may destroy this
  }

  io::Loop& loop_;
  const std::string what_;
  Done done_;
  std::optional<Result<T>> result_;  // the thread's until it has ended
  io::Fd ended_;                     // eventfd
  io::Loop::Handle watch_ = 0;
  std::thread thread_;
};

}  // namespace mc::store
