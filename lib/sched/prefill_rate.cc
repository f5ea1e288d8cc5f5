#include "sched/prefill_rate.h"

#include <algorithm>
#include <cmath>

namespace mc::sched {
namespace {
constexpr double kKept = 0.9;    // of the weight of what was measured before, at each measurement
constexpr double kOffMax = 100;  // a measurement further off is a fault, not a trend
// How far times are off for other reasons: HTTP, thread scheduling, a step of others.
constexpr double kNoiseMs = 20, kNoiseShare = 0.1;
constexpr double kSignalMs = 8;  // of the spec's time: shorter prompts say nothing
}  // namespace

void PrefillRate::learn(double spec_ms, double measured_ms) {
  if (!(spec_ms > 0) || !std::isfinite(spec_ms) || !(measured_ms > 0) ||
      !std::isfinite(measured_ms))
    return;
  const double seen = std::min(measured_ms, kOffMax * spec_ms);
  for (double* sum : {&weight_, &y_, &xx_, &xy_}) *sum *= kKept;
  weight_ += 1;
  y_ += measured_ms;
  xx_ += spec_ms * spec_ms;
  xy_ += spec_ms * seen;
  ++seen_;
}

// Least squares, with the prior as one more measurement.
double PrefillRate::factor(double prior) const {
  if (weight_ == 0 || xx_ < kSignalMs * kSignalMs * weight_) return prior;
  const double noise = kNoiseMs + kNoiseShare * mean_ms();
  return (xy_ + prior * noise * noise) / (xx_ + noise * noise);
}

}  // namespace mc::sched
