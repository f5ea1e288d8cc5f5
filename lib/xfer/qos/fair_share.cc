#include "xfer/qos/fair_share.h"

#include <cmath>

namespace mc::xfer {
namespace {

constexpr auto kHigh = static_cast<size_t>(Priority::kHigh);
constexpr uint64_t kGrain = 4096;

uint64_t to_bytes(double b) { return b < 1e18 ? static_cast<uint64_t>(b) : FairShare::kNoLimit; }

}  // namespace

FairShare::FairShare(NicConfig config) : config_(config) {
  for (uint32_t& w : config_.qos.weights) w = std::max(1u, w);
  seen_.fill(kLongAgo);
}

void FairShare::wants(Priority p, Time now) {
  Time& seen = seen_[static_cast<size_t>(p)];
  seen = std::max(seen, now);
}

void FairShare::sent(Priority p, uint64_t bytes, Time now) {
  wants(p, now);
  const bool idle = inflight_[0] + inflight_[1] + inflight_[2] == 0;
  if (idle && now - measured_at_ >= config_.rate_time) {  // a pause says nothing of the link
    measured_at_ = now;
    moved_ = 0;
  }
  inflight_[static_cast<size_t>(p)] += bytes;
}

void FairShare::done(Priority p, uint64_t bytes, uint64_t moved, Time now) {
  wants(p, now);
  uint64_t& inflight = inflight_[static_cast<size_t>(p)];
  inflight -= std::min(inflight, bytes);
  moved_ += moved;
  measure(now);
}

void FairShare::measure(Time now) {
  const Duration took = now - measured_at_;
  if (took < config_.rate_time) return;
  rate_ = static_cast<double>(moved_) / to_seconds(took);
  measured_at_ = now;
  moved_ = 0;
  capacity_ = std::max(capacity(now), rate_ + others_.rate);
  capacity_at_ = now;
}

void FairShare::round_trip(Duration least) {
  if (least > Duration::zero() && (round_trip_ == Duration::zero() || least < round_trip_))
    round_trip_ = least;
}

double FairShare::capacity(Time now) const {
  if (capacity_ <= 0) return 0;
  const double lives = to_seconds(now - capacity_at_) / to_seconds(config_.capacity_half_life);
  return capacity_ * std::exp2(-std::max(0.0, lives));
}

bool FairShare::active(size_t c, Time now) const {
  return inflight_[c] > 0 || now - seen_[c] < config_.idle_after;
}

NicDemand FairShare::demand(Time now) const {
  NicDemand out;
  for (size_t c = 0; c < kPriorities; ++c)
    out.active_until[c] =
        inflight_[c] > 0 ? now + config_.silent_after : seen_[c] + config_.idle_after;
  // What was moved before a pause is no rate of now.
  out.rate = now - measured_at_ < 4 * config_.rate_time ? rate_ : 0;
  out.capacity = capacity(now);
  out.round_trip = round_trip_;
  return out;
}

double FairShare::share(Priority p, Time now) const {
  const auto asked = static_cast<size_t>(p);
  double weights = 0;
  for (size_t c = 0; c < kPriorities; ++c)
    if (c == asked || others_.active[c] > 0 || active(c, now)) weights += config_.qos.weights[c];
  return config_.qos.weights[asked] / weights / (1.0 + others_.active[asked]);
}

bool FairShare::guarded(Time now) const {
  return inflight_[kHigh] > 0 || now - seen_[kHigh] < config_.guard_time ||
         now - others_.high_until < config_.guard_time;
}

double FairShare::full(Duration time, Time now) const {
  Duration least = round_trip_;
  if (others_.round_trip > Duration::zero() &&
      (least == Duration::zero() || others_.round_trip < least))
    least = others_.round_trip;
  return std::max(capacity(now), others_.capacity) * to_seconds(least + time);
}

// All lower classes of all processes together keep a full link's worth; each its part of that.
uint64_t FairShare::guarded_window(Priority p, Time now) const {
  double mine = 0, all = 0;
  for (size_t c = kHigh + 1; c < kPriorities; ++c) {
    const bool ours = c == static_cast<size_t>(p) || active(c, now);
    const double weight = config_.qos.weights[c];
    all += weight * (others_.active[c] + (ours ? 1.0 : 0.0));
    if (c == static_cast<size_t>(p)) mine = weight;
  }
  const double need = full(config_.turnaround, now) + static_cast<double>(config_.guarded_slice);
  const double total = std::max(need, static_cast<double>(config_.guarded_bytes));
  return std::max(config_.guarded_slice_min, to_bytes(total * mine / all));
}

uint64_t FairShare::window(Priority p, Time now) const {
  if (p != Priority::kHigh && guarded(now)) return guarded_window(p, now);
  const bool alone = others_.active[0] + others_.active[1] + others_.active[2] == 0;
  if (alone) return kNoLimit;
  const double all = full(config_.window_time, now);
  if (all <= 0) return kNoLimit;
  return std::max(config_.window_min, to_bytes(share(p, now) * all));
}

uint64_t FairShare::slice_max(Priority p, Time now) const {
  const uint64_t limit = window(p, now);
  if (limit == kNoLimit) return kNoLimit;
  const uint64_t half = limit / 2 / kGrain * kGrain;  // two in flight keep the link busy
  if (p != Priority::kHigh && guarded(now)) return std::max(config_.guarded_slice_min, half);
  return std::max(config_.slice_min, half);
}

bool FairShare::admits(Priority p, uint64_t bytes, Time now) const {
  const uint64_t have = inflight_[static_cast<size_t>(p)], limit = window(p, now);
  return have == 0 || limit == kNoLimit || (bytes <= limit && have <= limit - bytes);
}

}  // namespace mc::xfer
