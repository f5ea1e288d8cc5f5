// Fits the cost model (model_spec.h) to measured times.
// It minimizes the squares of relative errors, with no negative coefficient: more work is never
// predicted to take less time.
//
// Thread: pure functions. Units: seconds, tokens, bytes.
#pragma once
#include <cstdint>
#include <span>

#include "base/result.h"
#include "cost/model_spec.h"

namespace mc::cost {

struct PrefillPoint {
  uint64_t n = 0, p = 0;  // prompt tokens; reused ones among them
  double seconds = 0;
};
struct StepPoint {
  uint64_t batch = 0, context_tokens = 0;  // requests; the sum of their contexts
  double seconds = 0;
};
struct FitError {  // |predicted - measured| / measured
  double mean = 0, worst = 0;
};
struct CostFit {
  CostModel cost;
  FitError prefill, step;
};

// When reuse has no measurable cost, load_bytes_per_s is kFreeLoad. transfer_bytes_per_s stays the
// spec's, because no point measures transfers between nodes. Errors: kInvalid for fewer than 4
// prefill points or 3 step points, for times that are not positive, and for points that do not
// determine the coefficients.
inline constexpr double kFreeLoad = 1e15;
Result<CostFit> fit_cost(const ModelSpec& spec, std::span<const PrefillPoint> prefill,
                         std::span<const StepPoint> steps);

}  // namespace mc::cost
