// How long to look for a message before sleeping until it comes. To wake a thread takes longer than
// most calls, but a look takes a CPU from others: one that was in vain is half as long the next
// time, down to none; now and then a whole one finds out whether that has changed.
//
// Thread: one at a time.
#pragma once
#include <cstdint>

#include "base/time.h"

namespace mc::rpc {

class Spin {
 public:
  explicit Spin(Duration longest) : longest_(longest), now_(longest) {}
  // Of the look that begins; ask once for each.
  Duration begin() {
    const bool again = now_.count() == 0 && ++skipped_ % kAgain == 0;
    return again ? longest_ : now_;
  }
  void found() { now_ = longest_; }
  void in_vain() { now_ = now_ < kShortest ? Duration(0) : now_ / 2; }

 private:
  static constexpr Duration kShortest = std::chrono::microseconds(2);
  static constexpr uint32_t kAgain = 32;
  const Duration longest_;
  Duration now_;
  uint32_t skipped_ = 0;
};

}  // namespace mc::rpc
