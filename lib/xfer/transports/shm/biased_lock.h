// A lock biased to one owner thread, which takes it without a locked instruction. A locked
// instruction waits until all earlier stores have left the CPU; after a copy of 64 KiB that takes
// a tenth of the copy's time. Another thread that takes the lock makes the kernel run a barrier on
// every CPU of this process (membarrier), which takes some microseconds. Where the kernel has no
// membarrier, the owner pays as for a mutex.
//
// Requires: a lock is held for less than a millisecond; lock_slow() yields the CPU and polls.
// Thread: try_lock() and unlock() by the owner alone, or by threads that own it one after the
// other; lock_slow() and unlock_slow() by any.
#pragma once
#include <atomic>

#include "base/mutex.h"

namespace mc {

class MC_TSA(capability("mutex")) BiasedLock {
 public:
  // False while another thread has it, or waits for it.
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
  Mutex outside_;  // held by the thread in lock_slow()
};

}  // namespace mc
