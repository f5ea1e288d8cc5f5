// The steps of a batch that are computed at once: their times, and those of the gaps between
// tokens.
//
// Thread: one owner. Pure: time is an argument. Units: seconds.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "base/time.h"

namespace mc::sim {

// `count` steps: of first, first + rise, ... seconds.
struct Steps {
  double first = 0, rise = 0;
  uint64_t count = 0;
  double sum(uint64_t of) const;            // of the first ones
  uint64_t count_by(double seconds) const;  // until at least this long
};

// The steps that run now.
class StepPlan {
 public:
  // They begin after a pause.
  void begin(Time start, double pause_s, const Steps& steps);
  void stop() { running_ = false; }
  void shorten(uint64_t count);  // to so many, if they are more
  void end_step(Time now) { shorten(begun(now)); }
  bool running() const { return running_; }
  uint64_t begun(Time now) const;  // of these, the one that runs included
  Time starts() const { return starts_; }
  Time ends() const { return running_ ? ends_ : Time::max(); }
  const Steps& steps() const { return steps_; }

 private:
  bool running_ = false;
  Time starts_{}, ends_{};
  double pause_s_ = 0;
  Steps steps_;
};

// The steps that were, as far as some request needs them for its gaps.
class StepRecord {
 public:
  uint64_t size() const { return gone_ + segments_.size(); }  // the number of the next segment
  void add(const Steps& steps) { segments_.push_back(steps); }
  void forget(uint64_t before);  // segments of lower numbers
  // Appends the gaps from a segment on, but for its first `skip` steps.
  void gaps(uint64_t from, uint64_t skip, std::vector<double>& out) const;
  void clear();

 private:
  std::deque<Steps> segments_;
  uint64_t gone_ = 0;
};

}  // namespace mc::sim
