// Watches whether the answers of one engine fail, and says how long it is to get no requests.
//
// An engine fails when 5 of its last 10 answers did. It is ejected for 1 s, and for twice as long
// each time that it fails again, 30 s at most; ten good answers in a row make that 1 s again. After
// the time it is tried as any other. How many may be ejected at once is the caller's to say.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <cstdint>

#include "base/time.h"

namespace mc::serve {

class OutlierWatch {
 public:
  // Answers of requests that were sent before it was ejected do not count.
  void answered(bool well, Time now);
  bool failing() const;
  void eject(Time now);
  bool ejected(Time now) const { return now < until_; }
  Time until() const { return until_; }
  uint64_t ejections() const { return ejections_; }
  int failed() const;  // of the last answers
  int seen() const { return seen_; }

 private:
  uint32_t last_ = 0;  // a bit an answer, the newest lowest: 1 for a failure
  int seen_ = 0, good_in_a_row_ = 0;
  Duration next_{};
  Time until_{};
  uint64_t ejections_ = 0;
};

}  // namespace mc::serve
