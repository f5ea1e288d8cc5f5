// Reckons times to live on a node. Records say until which second an object is kept. Each process
// counts seconds of its own, which go on steadily. So a step of a wall clock changes no time to
// live, nor does a master whose clock differs.
//
// What lasts longer than a process has a ClockMark beside it, from which the next one goes on: by
// the time since the machine's boot, or after another boot by the wall clock. Without a mark the
// seconds begin at the wall clock.
//
// Thread: one owner. Pure: times come from outside.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "store/node/host_times.h"

namespace mc::store {

struct ClockMark {  // one moment, as a process counted it and as its machine did
  uint64_t own_s = 0;
  HostTimes host;
};

class KeepClock {
 public:
  static constexpr uint64_t kMost = uint64_t{1} << 40;  // seconds beyond all years

  // `host`: the machine's times at `now`.
  KeepClock(const HostTimes& host, Time now, const std::optional<ClockMark>& last = {})
      : own_s_(static_cast<int64_t>(resumed(host, last))),
        begun_(now),
        ahead_s_(static_cast<int64_t>(host.wall_s) - own_s_) {}

  uint64_t now_s(Time now) const { return static_cast<uint64_t>(seconds(now)); }
  ClockMark mark(const HostTimes& host, Time now) const { return {now_s(now), host}; }
  // The master counts so now; 0, or beyond all years: it does not say, and is taken to count alike.
  void mounted(uint64_t master_s, Time now) {
    const bool said = master_s != 0 && master_s <= kMost;
    shift_s_ = said ? seconds(now) - static_cast<int64_t>(master_s) : 0;
  }
  uint64_t master_s(Time now) const { return there(now_s(now)); }
  // From the master's seconds to this node's, and back. 0 is without an end, and stays 0.
  uint64_t here(uint64_t master_s) const { return moved(master_s, shift_s_); }
  uint64_t there(uint64_t own_s) const { return moved(own_s, -shift_s_); }
  // `s` later by `by` seconds, or earlier: at least 1. 0 stays 0.
  static uint64_t moved(uint64_t s, int64_t by) {
    constexpr uint64_t kHalf = INT64_MAX / 2;
    if (s == 0) return 0;
    return static_cast<uint64_t>(
        std::max<int64_t>(1, static_cast<int64_t>(std::min(s, kHalf)) + by));
  }

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
    return own_s_ + std::chrono::duration_cast<std::chrono::seconds>(now - begun_).count();
  }
  static uint64_t resumed(const HostTimes& host, const std::optional<ClockMark>& last) {
    const auto passed = [](uint64_t from, uint64_t to) { return to - std::min(from, to); };
    if (!last || last->own_s > kMost) return host.wall_s;
    const HostTimes& then = last->host;
    const bool same_boot =
        !host.boot.empty() && host.boot == then.boot && host.boot_s >= then.boot_s;
    return last->own_s + (same_boot ? host.boot_s - then.boot_s : passed(then.wall_s, host.wall_s));
  }

  int64_t own_s_;  // at begun_
  Time begun_;
  int64_t shift_s_ = 0, ahead_s_ = 0;  // of the master's seconds; of the wall clock
};

}  // namespace mc::store
