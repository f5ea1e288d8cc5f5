// Pure: the health of one rail, a state machine that remembers past failures.
//
//   healthy -> suspect -> resting -> probing -> healthy        and: healthy <-> slow
//
// Errors within a sliding window, or a ratio of lost attempts, trip a rail. It rests for its cool-
// down, then is probed by one attempt (or a ping) at a time. A success does not clear the history:
// a rail that trips again after it was healthy (a relapse) rests twice as long and needs twice the
// probes, up to limits; good service lets that decay. A failed probe is no relapse: a dead rail is
// probed at a steady pace, so that a repaired one is found soon. A `slow` rail works, but far
// below the others; it gets few slices, and no error counts.
//
// Thread: one at a time (its owner's mutex). Times are the caller's.
// Source: TENT paper 3.4.1, which resets its history on a success.
#pragma once
#include <cstdint>
#include <deque>

#include "base/time.h"
#include "xfer/core/rail_view.h"

namespace mc::xfer {

struct HealthConfig {
  uint32_t errors_max = 3;  // this many within `window` trip the rail
  Duration window = std::chrono::seconds(10);
  double loss_max = 0.15;  // of the last `loss_attempts` attempts, once there are that many
  uint32_t loss_attempts = 20;
  Duration rest_first = std::chrono::milliseconds(250), rest_max = std::chrono::seconds(30);
  Duration probe_every = std::chrono::milliseconds(250);  // while probes fail
  uint32_t probes_to_heal = 2;  // twice as many after each relapse, up to sixteen times
  Duration decay_every = std::chrono::seconds(10);  // of good service: one relapse is forgiven
  double slow_below = 0.1;                          // of the median bandwidth of its peers
};

class RailHealth {
 public:
  explicit RailHealth(HealthConfig config = {});
  void succeeded(Time now);
  void failed(Time now);  // an error, a lost connection, a slice that timed out
  void down(Time now);    // known dead (port down, link gone): trips at once
  void up(Time now);      // known back: probe now, whatever the rest
  void compare(double share_of_median, Time now);  // its bandwidth over its peers' median
  RailState state(Time now) {                      // resting ends when its time has passed
    const bool at_ease = state_ == RailState::kHealthy && relapses_ == 0 && errors_.empty();
    return at_ease ? state_ : as_of(now);
  }
  // May it be given ordinary work? Resting: no. Probing: one attempt at a time (`inflight` == 0).
  bool usable(Time now, uint32_t inflight);
  Time wakes() const;  // when a resting rail wants its next probe; Time::max(): never
  uint32_t relapses() const { return relapses_; }

 private:
  RailState as_of(Time now);
  void remember(bool lost);
  bool loses_too_many() const;
  uint32_t probes_wanted() const;
  void trip(Time now);
  HealthConfig config_;
  RailState state_ = RailState::kHealthy;
  std::deque<Time> errors_;
  uint64_t history_ = 0;  // the last attempts, one bit each, newest lowest; 1: lost
  uint32_t known_ = 0;    // how many bits of it
  uint32_t relapses_ = 0, healed_probes_ = 0;
  Time rests_until_{}, good_since_{};
};

}  // namespace mc::xfer
