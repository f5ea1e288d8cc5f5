// How many times longer a node's fetches from each of the others take than what is predicted for
// all pairs. What was seen fades (sched::Congestion), so that a pair is tried again.
//
// Thread: one owner. Pure. Size: pairs that were slow lately, kPairsMax at most.
#pragma once
#include <map>
#include <string>

#include "sched/cost.h"

namespace mc::sched {

class FetchLinks {
 public:
  static constexpr size_t kPairsMax = 256;
  static constexpr double kFaded = 1.05;  // and less is as fast as others

  void learn(const std::string& holder, double predicted_ms, double measured_ms, Time now) {
    std::erase_if(slow_, [&](const auto& pair) { return pair.second.factor(now) < kFaded; });
    if (slow_.size() >= kPairsMax && !slow_.contains(holder)) return;
    slow_[holder].learn(predicted_ms, measured_ms, now);
  }
  double factor(const std::string& holder, Time now) const {
    const auto it = slow_.find(holder);
    const double seen = it == slow_.end() ? 1 : it->second.factor(now);
    return seen < kFaded ? 1 : seen;
  }
  bool any(Time now) const {  // some pair is slow
    for (const auto& [holder, seen] : slow_)
      if (seen.factor(now) >= kFaded) return true;
    return false;
  }

 private:
  std::map<std::string, Congestion> slow_;  // by holder
};

}  // namespace mc::sched
