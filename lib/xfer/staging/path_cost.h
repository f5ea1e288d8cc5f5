// Which of several paths to move bytes is the quickest, learned from how long they took. Nothing is
// assumed of a link or a device: each usable path is tried, then the one predicted to be quickest
// for this many bytes is taken, and now and then another, so that what was learned does not grow
// old.
//
// Pure: decides only. Thread: any (one mutex is its user's).
#pragma once
#include <array>
#include <cstdint>

#include "base/time.h"

namespace mc::xfer {

class PathCostModel {
 public:
  static constexpr uint32_t kPaths = 4;
  static constexpr uint32_t kProbeEvery = 64;
  // `usable` has a bit for each path, one at least. The lowest of those that were not tried yet
  // goes first.
  uint32_t choose(uint64_t bytes, uint32_t usable);
  void record(uint32_t path, uint64_t bytes, Duration time);
  // It cannot, between these ends: not chosen again while another is usable.
  void exclude(uint32_t path) { excluded_ |= 1u << path; }

 private:
  static constexpr size_t kSizes = 16;  // factors of 4 from 1 KiB
  static size_t size_of(uint64_t bytes);
  struct Cost {
    double ns_per_byte = 0;  // 0: not tried
  };
  std::array<std::array<Cost, kSizes>, kPaths> costs_{};
  uint32_t excluded_ = 0, choices_ = 0, probed_ = 0;
};

}  // namespace mc::xfer
