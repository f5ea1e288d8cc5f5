// A lock that is nearly always taken by one thread, its owner, which pays no locked instruction for
// it: those wait until all earlier stores have left the CPU, which behind a copy of 64 KiB takes as
// long as a tenth of the copy. Any other thread that wants what it guards makes the kernel run a
// barrier on every CPU of this process (membarrier), some microseconds. Where the kernel does not
// know that, the owner pays as for a mutex.
//
// Thread: try_lock() and unlock() by the owner alone, or by threads that own it one after the
// other; lock_slow() and its unlock by any. A lock is held for less than a millisecond:
// who waits from outside gives the CPU away and looks again.
#pragma once
#include <atomic>

#include "base/mutex.h"

namespace mc {

class MC_TSA(capability("mutex")) BiasedLock {
 public:
  // False while somebody else has it, or wants it.
  bool try_lock() MC_TSA(try_acquire_capability(true)) {
    if (cheap())
      inside_.store(true, std::memory_order_relaxed);
    else
      inside_.exchange(true, std::memory_order_seq_cst);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // for the compiler; the CPU may reorder
    if (!closed_.load(std::memory_order_acquire)) return true;
    inside_.store(false, std::memory_order_release);
    return false;
  }
  void unlock() MC_TSA(release_capability()) { inside_.store(false, std::memory_order_release); }

  void lock_slow() MC_TSA(acquire_capability());
  void unlock_slow() MC_TSA(release_capability());

 private:
  static bool cheap() {
    static const bool registered = register_barrier();
    return registered;
  }
  static bool register_barrier();
  std::atomic<bool> inside_{false}, closed_{false};
  Mutex outside_;  // who closed it
};

}  // namespace mc
