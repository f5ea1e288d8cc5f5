// Wraps std::mutex and std::condition_variable with Clang's thread-safety annotations. With them,
// `make lint` proves that code touches guarded members only with their lock held. Prefer no mutex:
// one owner thread and a queue. No class holds a lock across a call out of it, so there is no lock
// order.
//
// Thread: any.
#pragma once
#include <condition_variable>
#include <mutex>

#include "base/time.h"

#ifdef __clang__
#define MC_TSA(x) __attribute__((x))
#else
#define MC_TSA(x)
#endif
#define MC_GUARDED_BY(m) MC_TSA(guarded_by(m))
#define MC_REQUIRES(m) MC_TSA(requires_capability(m))
#define MC_EXCLUDES(m) MC_TSA(locks_excluded(m))

namespace mc {

class MC_TSA(capability("mutex")) Mutex {
 public:
  void lock() MC_TSA(acquire_capability()) { m_.lock(); }
  void unlock() MC_TSA(release_capability()) { m_.unlock(); }
  bool try_lock() MC_TSA(try_acquire_capability(true)) { return m_.try_lock(); }

 private:
  friend class Condition;
  std::mutex m_;
};

class MC_TSA(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& m) MC_TSA(acquire_capability(m)) : m_(m) { m_.lock(); }
  ~Lock() MC_TSA(release_capability()) { m_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& m_;
};

// Waits with the lock held, in a loop over its predicate: while (!ready_) cond_.wait(mutex_);
class Condition {
 public:
  void notify_one() { c_.notify_one(); }
  void notify_all() { c_.notify_all(); }
  void wait(Mutex& m) MC_REQUIRES(m) {
    std::unique_lock<std::mutex> l(m.m_, std::adopt_lock);
    c_.wait(l);
    l.release();
  }
  // Returns false when `d` passed without a notification. Steps of the wall clock change nothing.
  bool wait_for(Mutex& m, Duration d) MC_REQUIRES(m) {
    std::unique_lock<std::mutex> l(m.m_, std::adopt_lock);
    const bool signalled = c_.wait_until(l, deadline(d)) == std::cv_status::no_timeout;
    l.release();
    return signalled;
  }

 private:
#ifdef __SANITIZE_THREAD__
  // By the wall clock: g++ 12's libtsan does not intercept pthread_cond_clockwait.
  using WaitClock = std::chrono::system_clock;
#else
  using WaitClock = std::chrono::steady_clock;
#endif
  static WaitClock::time_point deadline(Duration d) {
    return WaitClock::now() + std::chrono::duration_cast<WaitClock::duration>(d);
  }

  std::condition_variable c_;
};

}  // namespace mc
