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
  prioritized_ += priority != 0 ? 1 : 0;
  if (jobs_.empty()) {
    tell_others(to_ms(others_left(now)), now);
    started_ = now;
  } else {
    behind_ += length;
  }
  jobs_.push_back(
      {.id = job, .length = length, .tokens = tokens, .priority = priority, .since = now});
  tokens_ += tokens;
}

void Ledger::sent(uint64_t job) {
  for (Job& j : jobs_)
    if (j.id == job) j.sent = ++sent_;
}

void Ledger::silent(uint64_t job) {
  for (Job& j : jobs_)
    if (j.id == job) j.silent = true;
}

void Ledger::pass(Time now) {
  while (!jobs_.empty() && jobs_.front().silent && first_ends() <= now)
    finish(jobs_.front().id, first_ends());
}

void Ledger::finish(uint64_t job, Time now) {
  const auto it =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.id == job; });
  if (it == jobs_.end()) return;
  tokens_ -= it->tokens;
  prioritized_ -= it->priority != 0 ? 1 : 0;
  const bool ran = it == jobs_.begin();
  if (!ran) {
    behind_ -= it->length;
    if (gives_way(it->work(), now)) started_ = std::min(started_ + it->length, now);  // it waited
  }
  jobs_.erase(it);
  if (ran) take_next(now);
}

// After the running job ended, moves the one that the node takes now to the front.
void Ledger::take_next(Time now) {
  tell_others(to_ms(others_left(now)), now);
  started_ = now;
  if (jobs_.empty()) return;
  if (overtakes()) {
    std::vector<PrefillWork> work;
    for (const Job& j : jobs_) work.push_back(j.work());
    const size_t next = next_prefill(work, order_.srpf, order_.ageing, now);
    const auto at = jobs_.begin() + static_cast<std::ptrdiff_t>(next);
    std::rotate(jobs_.begin(), at, at + 1);
  }
  behind_ -= jobs_.front().length;
}

Duration Ledger::first_left(Time now) const { return std::max(first_ends() - now, Duration{0}); }

// Whether the job that runs waits for this one after its present chunk.
bool Ledger::gives_way(const PrefillWork& to, Time now) const {
  if (order_.chunk_tokens == 0 || jobs_.empty()) return false;
  PrefillWork first = jobs_.front().work();
  first.left_ms = to_ms(first_left(now));
  return !stays_before(first, to, order_);
}

// What `mine` waits for the job that runs.
Duration Ledger::running_left(const PrefillWork& mine, Time now) const {
  const Duration left = first_left(now);
  if (!gives_way(mine, now)) return left;
  const Job& first = jobs_.front();
  const double chunks =
      std::max(1.0, static_cast<double>(first.tokens) / static_cast<double>(order_.chunk_tokens));
  return std::min(left, from_seconds(to_seconds(first.length) / chunks));
}

Duration Ledger::before(uint64_t job, Time now) const {
  const auto it =
      std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& j) { return j.id == job; });
  if (it == jobs_.begin() && it != jobs_.end()) return others_left(now);
  const auto there = [&](const Job& j) {
    return it == jobs_.end() || it->sent == 0 || (j.sent > 0 && j.sent < it->sent);
  };
  Duration sum = !jobs_.empty() && !there(jobs_.front()) ? others_left(now)
                 : it == jobs_.end()                     ? first_left(now)
                                                         : running_left(it->work(), now);
  for (size_t i = 1; i < jobs_.size(); ++i) {
    const bool earlier = it == jobs_.end() || i < static_cast<size_t>(it - jobs_.begin());
    if (jobs_[i].id == job || !there(jobs_[i])) continue;
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

void Ledger::tell_others(double ms, Time now) {
  if (!std::isfinite(ms) || ms < 0 || (ms == 0 && others_.count() == 0)) return;
  others_ = from_ms(ms);
  told_ = now;
}

double Ledger::wait_ms(Time now, double ms, int64_t priority) const {
  if (!overtakes() && priority >= 0) return wait_ms(now);
  const PrefillWork mine{ms, now, true, priority};
  const Duration running = running_left(mine, now);
  Duration skipped = first_left(now) - running;  // and of the jobs that it overtakes
  for (size_t i = 1; i < jobs_.size(); ++i)
    if (!stays_before(jobs_[i].work(), mine, order_)) skipped += jobs_[i].length;
  return std::max(wait_ms(now) - to_ms(skipped), to_ms(running));
}

double Ledger::wait_ms(Time now) const {
  const Duration wait =
      first_left(now) + behind_ + (correction_.count() ? correction(now) : Duration{0});
  return to_ms(std::max(wait, Duration{0}));
}

}  // namespace mc::sched
