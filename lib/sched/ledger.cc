#include "sched/ledger.h"

#include <algorithm>
#include <cmath>

namespace mc::sched {
namespace {

constexpr double kLongestMs = 1e12;

Duration from_ms(double ms) { return from_seconds(std::clamp(ms, 0.0, kLongestMs) / 1e3); }

}  // namespace

void Ledger::charge(uint64_t job, double ms, uint64_t tokens, Time now) {
  const Duration length = from_ms(ms);
  if (jobs_.empty())
    started_ = now;
  else
    behind_ += length;
  jobs_.push_back({job, length, tokens});
  tokens_ += tokens;
}

void Ledger::finish(uint64_t job, Time now) {
  const auto it =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.id == job; });
  if (it == jobs_.end()) return;
  tokens_ -= it->tokens;
  if (it != jobs_.begin()) {
    behind_ -= it->length;
  } else {
    started_ = now;
    if (jobs_.size() > 1) behind_ -= jobs_[1].length;
  }
  jobs_.erase(it);
}

Duration Ledger::before(uint64_t job, Time now) const {
  Duration sum{0};
  for (size_t i = 0; i < jobs_.size() && jobs_[i].id != job; ++i)
    sum += i == 0 ? std::max(first_ends() - now, Duration{0}) : jobs_[i].length;
  return sum;
}

Duration Ledger::correction(Time now) const {
  const Duration passed = now - corrected_;
  if (correction_ >= Duration{0}) return std::max(correction_ - passed, Duration{0});
  return std::min(correction_ + passed, Duration{0});
}

void Ledger::correct(uint64_t job, double ms, Time now) {
  if (!std::isfinite(ms) || ms < 0) return;
  correction_ = from_ms(ms) - before(job, now);
  corrected_ = now;
}

double Ledger::wait_ms(Time now) const {
  const Duration first = jobs_.empty() ? Duration{0} : std::max(first_ends() - now, Duration{0});
  const Duration wait = first + behind_ + (correction_.count() ? correction(now) : Duration{0});
  return to_ms(std::max(wait, Duration{0}));
}

}  // namespace mc::sched
