// Which of several ways to move bytes is the quickest, learned from how long they took. Nothing is
// assumed of a link or a device: each usable way is tried, then the one predicted to be quickest
// for this many bytes is taken, and now and then another, so that what was learned does not grow
// old.
//
// Pure: decides only. Thread: any (one mutex is its user's).
#pragma once
#include <array>
#include <cstdint>

#include "base/time.h"

namespace mc::xfer {

class WayCosts {
 public:
  static constexpr uint32_t kWays = 4;
  static constexpr uint32_t kProbeEvery = 64;
  // `usable` has a bit for each way, one at least. The lowest of those that were not tried yet goes
  // first.
  uint32_t choose(uint64_t bytes, uint32_t usable);
  void took(uint32_t way, uint64_t bytes, Duration time);
  // It cannot, between these ends: not chosen again while another is usable.
  void refused(uint32_t way) { refused_ |= 1u << way; }

 private:
  static constexpr size_t kSizes = 16;  // factors of 4 from 1 KiB
  static size_t size_of(uint64_t bytes);
  struct Cost {
    double ns_per_byte = 0;  // 0: not tried
  };
  std::array<std::array<Cost, kSizes>, kWays> costs_{};
  uint32_t refused_ = 0, choices_ = 0, probed_ = 0;
};

}  // namespace mc::xfer
