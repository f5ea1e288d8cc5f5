#include "xfer/rails/rail_health.h"

#include <algorithm>
#include <bit>

namespace mc::xfer {

RailHealth::RailHealth(HealthConfig config) : config_(config) {
  config_.loss_attempts = std::clamp(config_.loss_attempts, 1u, 64u);
}

void RailHealth::remember(bool lost) {
  history_ = (history_ << 1) | (lost ? 1 : 0);
  known_ = std::min(known_ + 1, config_.loss_attempts);
}

bool RailHealth::loses_too_many() const {
  if (known_ < config_.loss_attempts) return false;
  const uint64_t mask = known_ == 64 ? ~uint64_t{0} : (uint64_t{1} << known_) - 1;
  return std::popcount(history_ & mask) > config_.loss_max * known_;
}

void RailHealth::succeeded(Time now) {
  switch (state(now)) {
    case RailState::kResting: return;  // the end of something older
    case RailState::kProbing:
      if (++healed_probes_ < probes_wanted()) return;
      state_ = RailState::kHealthy;
      good_since_ = now;
      known_ = 0;  // the attempts of another life; the errors stay in mind
      return;
    default: remember(false);
  }
}

void RailHealth::failed(Time now) {
  switch (state(now)) {
    case RailState::kResting: return;  // what was under way when it tripped
    case RailState::kProbing:          // no relapse: it never came back
      state_ = RailState::kResting;
      rests_until_ = now + config_.probe_every;
      return;
    default: break;
  }
  remember(true);
  errors_.push_back(now);
  if (errors_.size() >= config_.errors_max || loses_too_many())
    trip(now);
  else
    state_ = RailState::kSuspect;
}

// A rail that came back before only to fail again has more to prove.
uint32_t RailHealth::probes_wanted() const {
  constexpr uint32_t kDoublings = 4;
  return config_.probes_to_heal << (std::clamp(relapses_, 1u, kDoublings + 1) - 1);
}

void RailHealth::trip(Time now) {
  const auto doubled = config_.rest_first * (uint64_t{1} << std::min(relapses_, 20u));
  state_ = RailState::kResting;
  rests_until_ = now + std::min<Duration>(doubled, config_.rest_max);
  ++relapses_;
  known_ = 0;
}

void RailHealth::down(Time now) {
  if (state(now) != RailState::kResting) trip(now);
}

void RailHealth::up(Time now) {
  if (state(now) != RailState::kResting) return;
  state_ = RailState::kProbing;
  healed_probes_ = 0;
}

void RailHealth::compare(double share, Time now) {
  const RailState s = state(now);
  if (s == RailState::kSlow && share > 2 * config_.slow_below) state_ = RailState::kHealthy;
  if ((s == RailState::kHealthy || s == RailState::kSuspect) && share < config_.slow_below)
    state_ = RailState::kSlow;
}

RailState RailHealth::as_of(Time now) {
  while (!errors_.empty() && now - errors_.front() > config_.window) errors_.pop_front();
  if (state_ == RailState::kResting && now >= rests_until_) {
    state_ = RailState::kProbing;
    healed_probes_ = 0;
  }
  if (state_ == RailState::kSuspect && errors_.empty()) {
    state_ = RailState::kHealthy;
    good_since_ = now;
  }
  while (state_ == RailState::kHealthy && relapses_ > 0 &&
         now - good_since_ >= config_.decay_every) {
    --relapses_;
    good_since_ += config_.decay_every;
  }
  return state_;
}

bool RailHealth::usable(Time now, uint32_t inflight) {
  const RailState s = state(now);
  return s != RailState::kResting && (s != RailState::kProbing || inflight == 0);
}

Time RailHealth::wakes() const {
  return state_ == RailState::kResting ? rests_until_ : Time::max();
}

}  // namespace mc::xfer
