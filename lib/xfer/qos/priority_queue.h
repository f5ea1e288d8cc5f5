// Pure: three classes of work that share a link by weight. Work-conserving: while only one class
// waits it gets everything. Within a class, first come first served. Ageing: the head of a class
// that waited longer than `age_max` goes next, so nobody starves.
//
// Thread: one at a time (its owner's mutex).
// Source: TENT paper 3.3.2 names quotas; weights by deficit round robin (Shreedhar, Varghese 1996).
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <utility>

#include "base/time.h"

namespace mc::xfer {

enum class Priority : uint8_t { kHigh, kMedium, kLow };
inline constexpr size_t kPriorities = 3;
const char* name(Priority priority);

struct QosConfig {
  std::array<uint32_t, kPriorities> weights{16, 4, 1};
  Duration age_max = std::chrono::milliseconds(100);
};

}  // namespace mc::xfer
