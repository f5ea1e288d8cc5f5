// Whether a request's body comes fast enough: so many bytes a second in each window of time. The
// first window may bring less where it ends the body.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>

#include "base/time.h"

namespace mc::http {

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
    const double due = static_cast<double>(rate_) * seconds(now - since_);
    const bool enough = bytes_ > 0 && static_cast<double>(bytes_) >= due;
    begin(now);
    return enough;
  }

 private:
  static double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
  const uint64_t rate_;
  Time since_{};
  uint64_t bytes_ = 0;
};

}  // namespace mc::http
