// Rotary position embedding: cosine and sine for each pair and position. Computed in double, as
// products of two tables, so that far positions are as exact as near ones.
//
// Thread: values; const calls, any. Source: RoFormer (Su et al. 2021).
#pragma once
#include <complex>
#include <vector>

#include "model/files/config.h"

namespace mc::model {

class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(const ModelConfig& config)
      : RotaryEmbedding(config.rope, config.head_dim, config.context_max) {}
  RotaryEmbedding(const Rope& rope, uint32_t head_dim, uint64_t positions);
  size_t pairs() const { return pairs_; }
  void at(size_t position, std::complex<float>* rotations) const;  // of each pair
  void at(size_t position, float* cosines, float* sines) const;

 private:
  template <class Take>
  void each(size_t position, const Take& take) const;
  const size_t pairs_;
  // Rotations of each pair by multiples of kRotationStep positions, and by fewer.
  std::vector<std::complex<double>> coarse_, fine_;
};

}  // namespace mc::model
