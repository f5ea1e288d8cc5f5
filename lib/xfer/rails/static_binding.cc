#include "xfer/rails/static_binding.h"

#include <algorithm>

namespace mc::xfer {

uint32_t StaticBinding::bind(uint64_t offset, uint64_t bytes, uint32_t rails, uint64_t avoid) {
  if (rails < 2) return 0;
  uint32_t rail = 0;
  switch (scheduler_) {
    case Scheduler::kSpray: break;
    case Scheduler::kStatic:
      rail = static_cast<uint32_t>(offset / std::max<uint64_t>(bytes, 1) % rails);
      break;
    case Scheduler::kRoundRobin: rail = next_++ % rails; break;
    case Scheduler::kRandom: rail = static_cast<uint32_t>(random_.below(rails)); break;
  }
  for (uint32_t i = 0; i < rails; ++i) {
    const uint32_t other = (rail + i) % rails;
    if (other >= 64 || (avoid >> other & 1) == 0) return other;
  }
  return rail;
}

}  // namespace mc::xfer
