// The cost model (model_spec.h) that fits measured times best: least squares of relative errors,
// over coefficients that are not negative, so that more work is never predicted to take less time.
//
// Thread: pure functions. Units: seconds, tokens, bytes.
#pragma once
#include <cstdint>
#include <span>

#include "base/result.h"
#include "cost/model_spec.h"

namespace mc::cost {

struct PrefillPoint {
  uint64_t n = 0, p = 0;  // tokens of the prompt; of these, reused
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

// Where reuse costs nothing to measure, load_bytes_per_s is kFreeLoad. transfer_bytes_per_s is the
// spec's: it is between nodes. Errors: kInvalid for fewer than 4 points of prefill or 3 of steps,
// for times that are not positive, and for points that do not tell the coefficients apart at all.
inline constexpr double kFreeLoad = 1e15;
Result<CostFit> fit_cost(const ModelSpec& spec, std::span<const PrefillPoint> prefill,
                         std::span<const StepPoint> steps);

}  // namespace mc::cost
