#include "serve/connector/pool_rates.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mc::serve {
namespace {
constexpr double kLearn = 0.2;                       // weight of the newest observation
constexpr double kRateHalfLife = 60;                 // seconds
constexpr double kSlowMin = 1e-12, kSlowMax = 1e-3;  // seconds a byte; beyond it is a fault
}  // namespace

PoolRates::Bytes PoolRates::of(std::span<const At> places, uint64_t block_bytes) {
  Bytes bytes{};
  for (const At place : places) bytes[static_cast<size_t>(place)] += block_bytes;
  return bytes;
}

double PoolRates::fetch_seconds(const Bytes& bytes) const {
  double seconds = round_trip_s_;
  for (size_t i = 0; i < bytes.size(); ++i) seconds += static_cast<double>(bytes[i]) * slow_[i];
  return seconds;
}

// Within a run of blocks from one place each costs as much as the one before, while computing one
// costs more the later it is in the prompt. So the best number is where a run ends.
size_t PoolRates::worth(std::span<const At> places, uint64_t block_bytes,
                        const std::function<double(size_t)>& saved) const {
  size_t best = 0;
  double most = 0;
  Bytes bytes{};
  for (size_t i = 0; i < places.size(); ++i) {
    bytes[static_cast<size_t>(places[i])] += block_bytes;
    if (i + 1 < places.size() && places[i + 1] == places[i]) continue;
    const double gain = saved(i + 1) - fetch_seconds(bytes);
    if (gain <= most) continue;
    most = gain;
    best = i + 1;
  }
  return best;
}

void PoolRates::learn_round_trip(double seconds) {
  round_trip_s_ += kLearn * (seconds - round_trip_s_);
}

// The slowest place of a fetch explains what the others, as known, leave of its time. The mean is
// of seconds a byte: one slow fetch counts for what it took.
void PoolRates::learn(const Bytes& bytes, double seconds) {
  size_t slowest = bytes.size();
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] > 0) slowest = i;
  if (slowest == bytes.size() || !std::isfinite(seconds) || seconds <= 0) return;
  for (size_t i = 0; i < slowest; ++i) seconds -= static_cast<double>(bytes[i]) * slow_[i];
  if (seconds <= 0) return;  // it was faster than the others alone are known to be
  const double seen = seconds / static_cast<double>(bytes[slowest]);
  slow_[slowest] += kLearn * (std::clamp(seen, kSlowMin, kSlowMax) - slow_[slowest]);
}

void PoolRates::advance(Time now) {
  const double seconds = to_seconds(now - std::exchange(advanced_, now));
  if (seconds <= 0) return;
  const double left = std::exp2(-seconds / kRateHalfLife);
  for (size_t i = 0; i < slow_.size(); ++i) slow_[i] = kStart[i] + left * (slow_[i] - kStart[i]);
}

}  // namespace mc::serve
