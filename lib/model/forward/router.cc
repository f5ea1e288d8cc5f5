#include "model/forward/router.h"

#include <algorithm>
#include <numeric>

namespace mc::model {

void choose_experts(const Kernels& kernels, const Experts& experts, std::span<float> scores,
                    size_t row, std::vector<std::vector<Chosen>>& chosen) {
  const float most = *std::max_element(scores.begin(), scores.end());
  for (float& s : scores) s -= most;
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto used = order.begin() + experts.used;
  std::partial_sort(order.begin(), used, order.end(), [&](size_t a, size_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  kernels.exponential(scores.data(), scores.size());
  float all = 0, those = 0;
  for (const float s : scores) all += s;
  for (auto e = order.begin(); e != used; ++e) those += scores[*e];
  for (auto e = order.begin(); e != used; ++e)
    chosen[*e].push_back({row, scores[*e] / (experts.normalized ? those : all)});
}

float shared_share(const Kernels& kernels, const std::vector<float>& gate, const float* x) {
  float sum = 0;
  for (size_t i = 0; i < gate.size(); ++i) sum += gate[i] * x[i];
  float e = std::clamp(-sum, -80.0f, 80.0f);
  kernels.exponential(&e, 1);
  return 1 / (1 + e);
}

void add_share(const float* from, float share, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] += share * from[i];
}

}  // namespace mc::model
