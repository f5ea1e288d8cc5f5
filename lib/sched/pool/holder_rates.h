// Learns how fast single nodes of the KV store's pool are, each tier of a node by itself.
//
// A node that was not fetched from lately is as fast as all others of its tier. What was learned
// of one goes back to that, by half in a minute.
//
// Thread: one owner. Pure: time is an argument. Size: kPlacesMax places at most; the one learned
// longest ago makes room.
#pragma once
#include <functional>
#include <map>

#include "base/time.h"
#include "sched/pool/pool_index.h"

namespace mc::sched {

class HolderRates {
 public:
  static constexpr size_t kPlacesMax = 256;
  struct Rate {
    double slow = 0;  // seconds a byte
    Time learned{};
  };

  // Seconds a byte; `all`: those of all nodes of the tier.
  double slow(const PoolPlace& place, double all) const {
    const auto it = places_.find(place);
    return it == places_.end() ? all : it->second.slow;
  }
  void learn(const PoolPlace& place, double slow, Time now);
  void fade(Time now, const std::function<double(PoolTier)>& all);
  const std::map<PoolPlace, Rate>& all() const { return places_; }

 private:
  std::map<PoolPlace, Rate> places_;
  Time faded_{};
};

}  // namespace mc::sched
