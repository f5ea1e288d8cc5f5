#include "xfer/transports/shm/cache_residency.h"

#include <unistd.h>

#include <algorithm>

namespace mc::xfer {

uint64_t CacheResidency::window_of_this_cpu() {
  constexpr uint64_t kMost = 8u << 20, kLeast = 1u << 20;
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return cache <= 0 ? kMost : std::clamp(static_cast<uint64_t>(cache) / 4, kLeast, kMost);
}

}  // namespace mc::xfer
