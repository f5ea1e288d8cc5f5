#include "sched/ledger.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace mc::sched {
namespace {

constexpr double kLongestMs = 1e12;

Duration from_ms(double ms) { return from_seconds(std::clamp(ms, 0.0, kLongestMs) / 1e3); }

}  // namespace

void Ledger::charge(uint64_t job, double ms, uint64_t tokens, Time now, int64_t priority) {
  const Duration length = from_ms(ms);
  overtakes_ = overtakes_ || priority != 0;
  if (jobs_.empty())
    started_ = now;
  else
    behind_ += length;
  jobs_.push_back({job, length, tokens, priority, now});
  tokens_ += tokens;
}

void Ledger::finish(uint64_t job, Time now) {
  const auto it =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.id == job; });
  if (it == jobs_.end()) return;
  tokens_ -= it->tokens;
  const bool ran = it == jobs_.begin();
  if (!ran) behind_ -= it->length;
  jobs_.erase(it);
  if (ran) take_next(now);
}

// After the running job ended, moves the one that the node takes now to the front.
void Ledger::take_next(Time now) {
  started_ = now;
  if (jobs_.empty()) return;
  if (overtakes_) {
    std::vector<PrefillWork> work;
    for (const Job& j : jobs_) work.push_back(j.work());
    const size_t next = next_prefill(work, order_.srpf, order_.ageing, now);
    const auto at = jobs_.begin() + static_cast<std::ptrdiff_t>(next);
    std::rotate(jobs_.begin(), at, at + 1);
  }
  behind_ -= jobs_.front().length;
}

Duration Ledger::first_left(Time now) const {
  return jobs_.empty() ? Duration{0} : std::max(first_ends() - now, Duration{0});
}

Duration Ledger::before(uint64_t job, Time now) const {
  const auto it =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.id == job; });
  if (it == jobs_.begin() && it != jobs_.end()) return {};
  Duration sum = first_left(now);
  for (size_t i = 1; i < jobs_.size(); ++i) {
    const bool earlier = it == jobs_.end() || i < static_cast<size_t>(it - jobs_.begin());
    if (jobs_[i].id == job) continue;
    if (it == jobs_.end() || (earlier ? stays_before(jobs_[i].work(), it->work(), order_)
                                      : !stays_before(it->work(), jobs_[i].work(), order_)))
      sum += jobs_[i].length;
  }
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

double Ledger::wait_ms(Time now, double ms, int64_t priority) const {
  if (!overtakes_ && priority >= 0) return wait_ms(now);
  Duration skipped{0};  // of the jobs that it overtakes
  const PrefillWork mine{ms, now, true, priority};
  for (size_t i = 1; i < jobs_.size(); ++i)
    if (!stays_before(jobs_[i].work(), mine, order_)) skipped += jobs_[i].length;
  return std::max(wait_ms(now) - to_ms(skipped), to_ms(first_left(now)));
}

double Ledger::wait_ms(Time now) const {
  const Duration wait =
      first_left(now) + behind_ + (correction_.count() ? correction(now) : Duration{0});
  return to_ms(std::max(wait, Duration{0}));
}

}  // namespace mc::sched
