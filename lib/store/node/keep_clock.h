// Reckons times to live on a node. Records say until which second an object is kept; each process
// counts seconds of its own, which begin at its wall clock and go on steadily. So a step of a wall
// clock changes no time to live, nor does a master whose clock differs.
//
// Thread: one owner. Pure: times come from outside.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace mc::store {

class KeepClock {
 public:
  // `wall_s`: the wall clock at `now`, in seconds.
  KeepClock(uint64_t wall_s, Time now) : wall_s_(static_cast<int64_t>(wall_s)), begun_(now) {}

  uint64_t now_s(Time now) const { return static_cast<uint64_t>(seconds(now)); }
  // The master counts so now; 0, or beyond all years: it does not say, and is taken to count alike.
  void mounted(uint64_t master_s, Time now) {
    constexpr uint64_t kMost = uint64_t{1} << 40;
    const bool said = master_s != 0 && master_s <= kMost;
    shift_s_ = said ? seconds(now) - static_cast<int64_t>(master_s) : 0;
  }
  // From the master's seconds to this node's, and back. 0 is without an end, and stays 0.
  uint64_t here(uint64_t master_s) const { return moved(master_s, shift_s_); }
  uint64_t there(uint64_t own_s) const { return moved(own_s, -shift_s_); }

  // By how much the wall clock was stepped since the last call that said so; 0: by little.
  int64_t stepped_s(uint64_t wall_s, Time now) {
    const int64_t ahead = static_cast<int64_t>(wall_s) - seconds(now);
    const int64_t by = ahead - ahead_s_;
    if (by < kStep && by > -kStep) return 0;
    ahead_s_ = ahead;
    return by;
  }

 private:
  static constexpr int64_t kStep = 5;  // seconds
  int64_t seconds(Time now) const {
    return wall_s_ + std::chrono::duration_cast<std::chrono::seconds>(now - begun_).count();
  }
  static uint64_t moved(uint64_t s, int64_t by) {
    constexpr uint64_t kMost = INT64_MAX / 2;
    if (s == 0) return 0;
    return static_cast<uint64_t>(
        std::max<int64_t>(1, static_cast<int64_t>(std::min(s, kMost)) + by));
  }

  const int64_t wall_s_;
  const Time begun_;
  int64_t shift_s_ = 0, ahead_s_ = 0;
};

}  // namespace mc::store
