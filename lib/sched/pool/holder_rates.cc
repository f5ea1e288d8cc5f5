#include "sched/pool/holder_rates.h"

#include <algorithm>
#include <cmath>

namespace mc::sched {
namespace {
constexpr double kHolderHalfLife = 60;  // seconds
constexpr Duration kHolderForgotten = std::chrono::minutes(10);
constexpr Duration kFadePeriod = std::chrono::milliseconds(100);
}  // namespace

void HolderRates::learn(const PoolPlace& place, double slow, Time now) {
  if (places_.size() >= kPlacesMax && !places_.contains(place))
    places_.erase(std::min_element(
        places_.begin(), places_.end(),
        [](const auto& a, const auto& b) { return a.second.learned < b.second.learned; }));
  places_[place] = {slow, now};
}

void HolderRates::fade(Time now, const std::function<double(PoolTier)>& all) {
  if (now - faded_ < kFadePeriod) return;
  const double left = std::exp2(-to_seconds(now - faded_) / kHolderHalfLife);
  faded_ = now;
  std::erase_if(places_,
                [&](const auto& entry) { return now - entry.second.learned > kHolderForgotten; });
  for (auto& [place, rate] : places_) {
    const double others = all(place.tier);
    rate.slow = others + left * (rate.slow - others);
  }
}

}  // namespace mc::sched
