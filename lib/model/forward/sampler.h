// Chooses the next token from a row of logits: greedy, or drawn at random.
//
// A draw depends on the logits, the seed and the position alone: a retry, another batch or another
// node draws the same. Probabilities are whole numbers, e^((logit - the greatest) / temperature) in
// parts of 2^-40, rounded down. Their sums are exact in any order, so a device that adds them in
// another order (MC_SAMPLE in device/kernels/model_kernels.h) draws the same token.
//
// Thread: any. Source: Holtzman et al. 2020 (top-p).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace mc::model {

struct Draw {
  double temperature = 0;  // 0: greedy
  uint32_t top_k = 0;      // 0: all
  double top_p = 1;        // the fewest tokens that are this likely together
  uint64_t seed = 0, position = 0;
  std::span<const int32_t> never{};  // tokens that must not come now
  double min_p = 0;  // none less likely than this part of the likeliest; before top_k and top_p

  bool greedy() const { return !(temperature > 0) || top_k == 1; }
  uint64_t bits() const;  // the random bits of seed and position
};

// The lowest id of equally likely tokens. `logits` is not empty; those of `never` are overwritten.
int32_t sample(std::span<float> logits, const Draw& draw);

}  // namespace mc::model
