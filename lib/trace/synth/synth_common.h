// Rounds token counts and draws stratified random numbers, for the generators of synth.h.
//
// Thread: one owner. Pure: random numbers from the caller.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace mc::trace {

inline uint64_t whole_tokens(double tokens, uint64_t low, uint64_t high) {
  return static_cast<uint64_t>(
      std::clamp(std::round(tokens), static_cast<double>(low), static_cast<double>(high)));
}

// Draws uniform numbers. Every batch of 128 has one in each 128th of [0, 1), in random order, so
// that means of long-tailed lengths vary little from seed to seed.
class Strata {
 public:
  double draw(Random& random) {
    if (left_.empty()) {
      left_.resize(kStrata);
      std::iota(left_.begin(), left_.end(), 0.0);
      for (size_t i = kStrata; i > 1; --i) std::swap(left_[i - 1], left_[random.below(i)]);
    }
    const double stratum = left_.back();
    left_.pop_back();
    return (stratum + random.uniform()) / kStrata;
  }

 private:
  static constexpr size_t kStrata = 128;
  std::vector<double> left_;
};

}  // namespace mc::trace
