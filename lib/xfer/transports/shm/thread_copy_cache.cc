#include "xfer/transports/shm/thread_copy_cache.h"

#include <bit>

namespace mc::xfer {
namespace {
static_assert(ThreadCopyCache::kSlots < 64);
// A bit for each slot in use by a thread. Acquire and release order the slot's contents between its
// successive owners.
std::atomic<uint64_t> g_taken{0};
}  // namespace

ThreadCopyCache::Seat::Seat() {
  uint64_t taken = g_taken.load(std::memory_order_relaxed);
  do {
    number = static_cast<size_t>(std::countr_one(taken));
    if (number >= kSlots) return;
  } while (!g_taken.compare_exchange_weak(taken, taken | uint64_t{1} << number,
                                          std::memory_order_acquire, std::memory_order_relaxed));
}

ThreadCopyCache::Seat::~Seat() {
  if (number < kSlots) g_taken.fetch_and(~(uint64_t{1} << number), std::memory_order_release);
}

}  // namespace mc::xfer
