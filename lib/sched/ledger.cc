#include "sched/ledger.h"

#include <algorithm>
#include <cmath>

namespace mc::sched {

void Ledger::charge(uint64_t job, double ms, uint64_t tokens, Time now) {
  if (jobs_.empty()) started_ = now;
  jobs_.push_back({job, std::max(ms, 0.0), tokens});
  tokens_ += tokens;
}

void Ledger::finish(uint64_t job, Time now) {
  const auto it =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.id == job; });
  if (it == jobs_.end()) return;
  tokens_ -= it->tokens;
  if (it == jobs_.begin()) started_ = now;
  jobs_.erase(it);
}

double Ledger::before(uint64_t job, Time now) const {
  double sum = 0;
  for (size_t i = 0; i < jobs_.size() && jobs_[i].id != job; ++i) {
    const double done = i == 0 ? to_ms(now - started_) : 0;
    sum += std::max(jobs_[i].ms - done, 0.0);
  }
  return sum;
}

double Ledger::correction(Time now) const {
  const double left = std::abs(correction_) - to_ms(now - corrected_);
  return left <= 0 ? 0 : std::copysign(left, correction_);
}

void Ledger::correct(uint64_t job, double ms, Time now) {
  if (!std::isfinite(ms) || ms < 0) return;
  correction_ = ms - before(job, now);
  corrected_ = now;
}

double Ledger::wait_ms(Time now) const { return std::max(before(0, now) + correction(now), 0.0); }

}  // namespace mc::sched
