// Names the policies that an engine's options choose among.
//
// Thread: values.
#pragma once
#include <cstdint>

namespace mc::xfer {

// Binds slices to rails late (kSpray), or at submission as other engines do.
enum class Scheduler : uint8_t { kSpray, kStatic, kRoundRobin, kRandom };

// Selects the idle queue pair that a full endpoint pool closes.
enum class Eviction : uint8_t { kSieve, kFifo };

}  // namespace mc::xfer
