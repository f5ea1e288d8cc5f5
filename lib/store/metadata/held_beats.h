// Which heartbeats are held, and which of their senders to look at: those that may have news, and
// those whose time has come. Nobody else costs anything. A sender is a number.
//
// Thread: one owner. Pure.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/time.h"

namespace mc::store {

class HeldBeats {
 public:
  void hold(uint32_t sender, Time until) {
    release(sender);
    until_[sender] = until;
    by_time_.emplace(until, sender);
  }
  void release(uint32_t sender) {
    const auto it = until_.find(sender);
    if (it == until_.end()) return;
    by_time_.erase({it->second, sender});
    until_.erase(it);
  }
  void stir(uint32_t sender) { stirred_.insert(sender); }  // it may have news
  std::set<uint32_t> take_stirred() { return std::exchange(stirred_, {}); }
  void forget(uint32_t sender) {
    release(sender);
    stirred_.erase(sender);
  }
  std::optional<uint32_t> due(Time now) const {
    if (by_time_.empty() || by_time_.begin()->first > now) return std::nullopt;
    return by_time_.begin()->second;
  }
  Time deadline() const { return by_time_.empty() ? Time::max() : by_time_.begin()->first; }

 private:
  std::map<uint32_t, Time> until_;
  std::set<std::pair<Time, uint32_t>> by_time_;
  std::set<uint32_t> stirred_;
};

}  // namespace mc::store
