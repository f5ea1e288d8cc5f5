// Whether a request's body comes, and an answer is taken, fast enough: so many bytes a second in
// each window of time.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/time.h"

namespace mc::http {

inline double seconds_of(Duration d) { return std::chrono::duration<double>(d).count(); }  // exact

// The first window may bring less where it ends the body.
class BodyPace {
 public:
  explicit BodyPace(uint64_t bytes_per_second) : rate_(bytes_per_second) {}
  void begin(Time now) {
    since_ = now;
    bytes_ = 0;
  }
  void arrived(uint64_t bytes) { bytes_ += bytes; }
  // Ends a window and begins the next. False: it brought too little.
  bool keeps(Time now) {
    const double due = static_cast<double>(rate_) * seconds_of(now - since_);
    const bool enough = bytes_ > 0 && static_cast<double>(bytes_) >= due;
    begin(now);
    return enough;
  }

 private:
  const uint64_t rate_;
  Time since_{};
  uint64_t bytes_ = 0;
};

// A window begins when bytes wait for the client, and ends early when it has taken all of them, or
// when nobody looked for a while: a process that stood still wrote nothing that could be taken.
class AnswerPace {
 public:
  AnswerPace(uint64_t bytes_per_second, Duration window)
      : rate_(bytes_per_second), window_(window) {}
  void wrote(uint64_t bytes) { written_ += bytes; }  // to its socket
  void caught_up() { waits_ = false; }               // nothing waits for it
  // Bytes wait for it, and of those that were written `left` are in its socket still.
  // False: in a whole window it took too little.
  bool keeps(uint64_t left, Time now) {
    const uint64_t taken = written_ - std::min(written_, left);
    if (now - std::exchange(looked_, now) > window_ / 4) waits_ = false;
    if (waits_ && now - since_ < window_) return true;
    const double due = static_cast<double>(rate_) * seconds_of(now - since_);
    const bool enough = !waits_ || static_cast<double>(taken - taken_) >= due;
    waits_ = true;
    since_ = now;
    taken_ = taken;
    return enough;
  }

 private:
  const uint64_t rate_;
  const Duration window_;
  bool waits_ = false;
  Time since_{}, looked_{};
  uint64_t written_ = 0, taken_ = 0;  // bytes; at the window's begin
};

}  // namespace mc::http
