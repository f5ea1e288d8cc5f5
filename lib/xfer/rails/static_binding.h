// Pure: binds each slice to a rail at submission, as older engines do. It exists for comparison
// with RailScheduler. The choice ignores the rail's load and speed. A slice leaves its rail only
// after a failure there.
//
//   static       by its offset in the segment: each stripe of the memory has a rail
//   round-robin  one rail after the other
//   random       any
//
// Thread: one at a time (its owner's mutex).
// Source: TENT paper 2.2.2 and 4.1, of the engine before it (random); 4.2 (static striping).
#pragma once
#include <cstdint>

#include "base/random.h"
#include "xfer/core/policies.h"

namespace mc::xfer {

class StaticBinding {
 public:
  StaticBinding(Scheduler scheduler, uint64_t seed) : scheduler_(scheduler), random_(seed) {}
  bool binds() const { return scheduler_ != Scheduler::kSpray; }
  // A rail of `rails`, for `bytes` at `offset`; not one of `avoid` (a bit each) if there is
  // another.
  uint32_t bind(uint64_t offset, uint64_t bytes, uint32_t rails, uint64_t avoid = 0);

 private:
  Scheduler scheduler_;
  Random random_;
  uint32_t next_ = 0;
};

}  // namespace mc::xfer
