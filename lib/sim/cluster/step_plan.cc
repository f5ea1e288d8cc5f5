#include "sim/cluster/step_plan.h"

#include <algorithm>
#include <cmath>

namespace mc::sim {

double Steps::sum(uint64_t of) const {
  const auto n = static_cast<double>(of);
  return n * first + rise * n * (n - 1) / 2;
}

uint64_t Steps::count_by(double seconds) const {
  if (seconds <= first) return 1;
  double guess = seconds / first;
  if (rise > 0) {  // first n + rise n (n - 1) / 2 = seconds
    const double a = rise / 2, b = first - a;
    guess = (-b + std::sqrt(b * b + 4 * a * seconds)) / (2 * a);
  }
  auto n = static_cast<uint64_t>(std::max(std::floor(guess), 1.0));
  while (n > 1 && sum(n - 1) >= seconds) --n;
  while (sum(n) < seconds) ++n;
  return n;
}

void StepPlan::begin(Time start, double pause_s, const Steps& steps) {
  running_ = true;
  starts_ = start;
  pause_s_ = pause_s;
  steps_ = steps;
  ends_ = starts_ + from_seconds(pause_s_ + steps_.sum(steps_.count));
}

void StepPlan::shorten(uint64_t count) {
  if (count >= steps_.count) return;
  steps_.count = count;
  ends_ = starts_ + from_seconds(pause_s_ + steps_.sum(steps_.count));
}

uint64_t StepPlan::begun(Time now) const {
  return std::min(steps_.count, steps_.count_by(to_seconds(now - starts_) - pause_s_));
}

void StepRecord::forget(uint64_t before) {
  for (; gone_ < before; ++gone_) segments_.pop_front();
}

void StepRecord::gaps(uint64_t from, uint64_t skip, std::vector<double>& out) const {
  for (uint64_t s = from - gone_; s < segments_.size(); ++s) {
    for (uint64_t i = skip; i < segments_[s].count; ++i)
      out.push_back(segments_[s].first + segments_[s].rise * static_cast<double>(i));
    skip = 0;
  }
}

void StepRecord::clear() {
  segments_.clear();
  gone_ = 0;
}

}  // namespace mc::sim
