#include "xfer/transports/shm/parallel_copy.h"

#include <immintrin.h>

namespace mc::xfer {
namespace {
constexpr int kSpins = 4000;  // about the time of a piece: sleeping and waking takes as long
}

bool ParallelCopy::copy_next() {
  const uint64_t i = next_.fetch_add(1, std::memory_order_acq_rel);
  if (i >= pieces_.count()) return false;
  rule_.copy(pieces_.at(i));
  return true;
}

void ParallelCopy::leave() {
  if (working_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Lock lock(mutex_);
  left_.notify_all();
}

bool ParallelCopy::finish() {
  const bool all = next_.fetch_add(pieces_.count(), std::memory_order_acq_rel) >= pieces_.count();
  for (int i = 0; i < kSpins && working_.load(std::memory_order_acquire) > 0; ++i) _mm_pause();
  Lock lock(mutex_);
  while (working_.load(std::memory_order_acquire) > 0) left_.wait(mutex_);
  return all;
}

}  // namespace mc::xfer
