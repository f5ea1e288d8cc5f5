#include "xfer/transports/shm/biased_lock.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/result.h"

namespace mc {

bool BiasedLock::register_barrier() {
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

// Either the owner sees closed_, or, past the barrier, we see that it is inside.
void BiasedLock::lock_slow() {
  outside_.lock();
  closed_.store(true, std::memory_order_seq_cst);
  if (cheap()) MC_CHECK(::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
  while (inside_.load(std::memory_order_seq_cst)) ::sched_yield();
}

void BiasedLock::unlock_slow() {
  closed_.store(false, std::memory_order_release);
  outside_.unlock();
}

}  // namespace mc
