// Names the policies that an engine's options choose among.
//
// Thread: values.
#pragma once
#include <cstdint>

namespace mc::xfer {

// How slices are bound to rails: late (kSpray), or at submission as other engines do.
enum class Scheduler : uint8_t { kSpray, kStatic, kRoundRobin, kRandom };

// Which idle queue pairs a full endpoint pool closes.
enum class Eviction : uint8_t { kSieve, kFifo };

}  // namespace mc::xfer
