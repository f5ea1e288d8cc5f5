// Predicts how long an engine's work takes, from its model's coefficients.
//
// Thread: values. Pure. Units: tokens; time as Duration.
#pragma once
#include <cstdint>

#include "base/time.h"
#include "cost/model_spec.h"

namespace mc::cost {

// The cost model times `scale` (0: no wait). The chunks of a prompt
// add up to prefill(n, reused), however it is cut.
struct Timing {
  ModelSpec spec;
  double scale = 1;

  Duration prefill(uint64_t n, uint64_t reused) const {
    return scaled(prefill_seconds(spec, n, reused));
  }
  Duration load(uint64_t reused) const {  // of reused KV, part of prefill()
    return scaled(static_cast<double>(reused * spec.kv_bytes_per_token()) /
                  spec.cost.load_bytes_per_s);
  }
  // Tokens [begin, end) of a prompt; the first chunk (begin == reused) has the fixed cost.
  // Excludes the load. A layer takes 1 / layers of it.
  Duration chunk(uint64_t begin, uint64_t end, uint64_t reused) const {
    const auto b = static_cast<double>(begin), e = static_cast<double>(end);
    const CostModel& c = spec.cost;
    return scaled((begin == reused ? c.c0 : 0) + c.c1 * (e - b) + c.c2 * (e * e - b * b));
  }
  // One decode step of `batch` requests whose contexts sum to `context_tokens`.
  Duration step(uint64_t batch, uint64_t context_tokens) const {
    return scaled(step_seconds(spec, batch, context_tokens));
  }

 private:
  Duration scaled(double seconds) const { return from_seconds(seconds * scale); }
};

}  // namespace mc::cost
