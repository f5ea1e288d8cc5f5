// While a thread looks for an answer, whoever makes that answer may be waiting for this very CPU:
// with two CPUs, a client and a server that look leave none to the node that both wait for. So it
// gives its CPU away between looks, which costs some 0.3 us when nobody wants it. Where it comes
// back late, somebody else works here who is not of ours: then it refrains for a while, and for
// longer each time.
//
// Thread: one at a time.
#pragma once
#include <sched.h>

#include <algorithm>

#include "base/time.h"

namespace mc::rpc {

class Courtesy {
 public:
  // Of a look that begins: by as much it may last longer when others had the CPU.
  void begin() { lends_ = kLendMax; }
  // Gives the CPU away, or not: by how much the look may last longer.
  Duration offer(const Clock& clock) {
    const Time start = clock.now();
    if (start < refrains_until_) return Duration(0);
    ::sched_yield();
    const Time back = clock.now();
    const Duration gone = back - start;
    if (gone < kLate) {
      refrains_ = kLeast;
    } else {
      refrains_until_ = back + refrains_;
      refrains_ = std::min(2 * refrains_, kMost);
    }
    const Duration lent = std::min(gone, lends_);
    lends_ -= lent;
    return lent;
  }

 private:
  static constexpr Duration kLendMax = std::chrono::microseconds(200);
  static constexpr Duration kLate = std::chrono::microseconds(500);
  static constexpr Duration kLeast = std::chrono::milliseconds(50),
                            kMost = std::chrono::seconds(10);
  Duration lends_{0};
  Time refrains_until_ = Time::min();
  Duration refrains_ = kLeast;
};

}  // namespace mc::rpc
