// Chooses the experts of a row: the greatest of its scores, and their shares.
//
// Every number is the same whatever instruction set computes it, and whatever other rows there are.
//
// Scores become shares by softmax, or each by a sigmoid (DeepSeek V3), then `bias` is added where
// experts are chosen, and there alone. Of experts in groups a row sees those of the best groups: by
// their greatest score, with sigmoids by the sum of the two greatest.
//
// Thread: any. Source: Mixtral (Jiang et al. 2024); Qwen's MoE models; DeepSeek-V2 and DeepSeek-V3
// (DeepSeek-AI 2024).
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "model/files/config.h"
#include "model/kernels/kernels.h"

namespace mc::model {

struct Chosen {
  size_t row = 0;
  float share = 0;  // what the expert's result is multiplied by
};

// Appends `row` to each expert that it chose, of equal scores the one of the lower number. Changes
// `scores`, one of each expert. `bias`: of each expert, or empty.
void choose_experts(const Kernels& kernels, const Experts& experts, std::span<const float> bias,
                    std::span<float> scores, size_t row, std::vector<std::vector<Chosen>>& chosen);
// The share of the expert that all rows have: the sigmoid of `gate` times the row.
float shared_share(const Kernels& kernels, const std::vector<float>& gate, const float* x);
// out += share x from
void add_share(const float* from, float share, size_t n, float* out);

}  // namespace mc::model
