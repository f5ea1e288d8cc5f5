// Chooses the quickest of several paths for a copy, from measured times. It assumes nothing of a
// link or a device. It tries each usable path once, then takes the one predicted to be quickest for
// the number of bytes. Every 64th choice tries another path, so that measurements stay current.
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
  // Requires: `usable` has a bit for at least one path. Untried paths go first, the lowest of them
  // before the others.
  uint32_t choose(uint64_t bytes, uint32_t usable);
  void record(uint32_t path, uint64_t bytes, Duration time);
  // The path does not work between these ends: choose() takes it only if no other is usable.
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
