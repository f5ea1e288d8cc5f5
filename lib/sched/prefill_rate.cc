#include "sched/prefill_rate.h"

#include <algorithm>
#include <cmath>

namespace mc::sched {
namespace {

constexpr double kKept = 0.9;     // of a measurement's weight, at each later one
constexpr double kOffMax = 100;   // times the spec: more is a fault, not a trend
constexpr double kOffMs = 10000;  // and this beside it
// How far times are off for other reasons: HTTP, thread scheduling, a step of others.
constexpr double kNoiseMs = 10, kNoiseShare = 0.1;
constexpr double kFixedMs = 50;     // the fixed part is of this size, if nothing says otherwise
constexpr double kFactorMin = 0.1;  // of the prior
constexpr double kSignalMs = 8;     // of the spec's time: shorter prompts say nothing of the factor
// But these do: lengths that differ so, and answers that take so long.
constexpr double kSpread = 3, kSlowMs = 300;
constexpr size_t kScaleSeen = 5;
constexpr int kRounds = 4;  // of weighing by distance

// Sums of a weighted fit of y = fixed + factor * x.
struct Sums {
  double w = 0, x = 0, xx = 0, y = 0, xy = 0;
  void add(double weight, double at, double value) {
    w += weight;
    x += weight * at;
    xx += weight * at * at;
    y += weight * value;
    xy += weight * at * value;
  }
};

}  // namespace

void PrefillRate::learn(double spec_ms, double measured_ms, double prior) {
  if (!(spec_ms > 0) || !std::isfinite(spec_ms) || !(measured_ms > 0) ||
      !std::isfinite(measured_ms) || !(prior > 0))
    return;
  const double ms = std::min(measured_ms, kOffMax * spec_ms + kOffMs);
  weight_ = kKept * weight_ + 1;
  y_ = kKept * y_ + ms;
  if (seen_ == 0) factor_ = prior;
  last_[seen_++ % kKeptMax] = {spec_ms, ms};
  for (int i = 0; i < kRounds; ++i) fit_once(prior);
}

// Least squares of relative errors, with the priors as measurements. What is further off than the
// noise weighs by its distance, not by the distance's square.
void PrefillRate::fit_once(double prior) {
  // An engine many times as slow as the spec is believed when five answers say so.
  const size_t kept = std::min<size_t>(seen_, kKeptMax);
  double scale = prior, shortest = last_[0].spec_ms, longest = shortest;
  std::array<double, kKeptMax> times{};
  for (size_t i = 0; i < kept; ++i) {
    times[i] = last_[i].ms / last_[i].spec_ms;
    shortest = std::min(shortest, last_[i].spec_ms);
    longest = std::max(longest, last_[i].spec_ms);
  }
  if (kept >= kScaleSeen) {
    std::nth_element(times.begin(), times.begin() + kept / 2, times.begin() + kept);
    scale = std::max(prior, times[kept / 2]);
  }
  const bool differ = longest > kSpread * shortest && mean_ms() > kSlowMs;
  Sums s;
  s.w = 1 / (kFixedMs * kFixedMs);  // of a fixed part of 0
  s.xx = 1 / (scale * scale);       // of the factor `prior`
  s.xy = prior * s.xx;
  double newer = 1, weight = 0, squares = 0;
  for (uint64_t i = seen_; i > 0 && seen_ - i < kKeptMax; --i, newer *= kKept) {
    const Measured& m = last_[(i - 1) % kKeptMax];
    const double now = fixed_ms_ + factor_ * m.spec_ms;
    const double noise = kNoiseMs + kNoiseShare * now;
    const double off = std::max(1.0, std::abs(m.ms - now) / noise);
    s.add(newer / (noise * noise * off), m.spec_ms, m.ms);
    weight += newer;
    squares += newer * m.spec_ms * m.spec_ms;
  }
  if (!differ && squares < kSignalMs * kSignalMs * weight) {
    factor_ = prior;
    fixed_ms_ = std::max(0.0, (s.y - prior * s.x) / s.w);
    return;
  }
  const double det = s.w * s.xx - s.x * s.x;
  fixed_ms_ = std::max(0.0, (s.xx * s.y - s.x * s.xy) / det);
  factor_ = std::max(kFactorMin * prior, (s.xy - s.x * fixed_ms_) / s.xx);
}

double PrefillRate::predict_ms(double spec_ms, double prior) const {
  return seen_ > 0 ? fixed_ms_ + factor_ * spec_ms : prior * spec_ms;
}

}  // namespace mc::sched
