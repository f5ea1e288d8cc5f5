#include "model/forward/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mc::model {

namespace {

// The greater first; of equal ones the one of the lower number.
struct Better {
  std::span<const float> of;
  bool operator()(size_t a, size_t b) const { return of[a] != of[b] ? of[a] > of[b] : a < b; }
};

void sigmoids(const Kernels& kernels, std::span<float> scores) {
  for (float& s : scores) s = std::clamp(-s, -80.0f, 80.0f);
  kernels.exponential(scores.data(), scores.size());
  for (float& s : scores) s = 1 / (1 + s);
}

// The experts that a row may choose.
std::vector<size_t> candidates(const Experts& e, std::span<const float> scores, bool two) {
  std::vector<size_t> all(scores.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (e.groups_used == e.groups) return all;
  const size_t each = e.count / e.groups;
  std::vector<float> best(e.groups);
  for (size_t g = 0; g < best.size(); ++g) {
    float first = -INFINITY, second = -INFINITY;
    for (const float s : scores.subspan(g * each, each)) {
      second = std::max(second, std::min(first, s));
      first = std::max(first, s);
    }
    best[g] = two ? first + second : first;
  }
  std::vector<size_t> groups(e.groups), some;
  std::iota(groups.begin(), groups.end(), size_t{0});
  std::partial_sort(groups.begin(), groups.begin() + e.groups_used, groups.end(), Better{best});
  for (size_t i = 0; i < e.groups_used; ++i)
    for (size_t k = 0; k < each; ++k) some.push_back(groups[i] * each + k);
  return some;
}

}  // namespace

void choose_experts(const Kernels& kernels, const Experts& experts, std::span<const float> bias,
                    std::span<float> scores, size_t row, std::vector<std::vector<Chosen>>& chosen) {
  const bool sigmoid = !bias.empty();
  if (sigmoid) {
    sigmoids(kernels, scores);
  } else {
    const float most = *std::max_element(scores.begin(), scores.end());
    for (float& s : scores) s -= most;
  }
  std::vector<float> biased(scores.begin(), scores.end());
  for (size_t i = 0; i < bias.size(); ++i) biased[i] += bias[i];
  std::vector<size_t> order = candidates(experts, biased, sigmoid);
  const auto used = order.begin() + experts.used;
  std::partial_sort(order.begin(), used, order.end(), Better{biased});
  float all = 1, those = 0;
  if (!sigmoid) {
    kernels.exponential(scores.data(), scores.size());
    all = 0;
    for (const float s : scores) all += s;
  }
  for (auto e = order.begin(); e != used; ++e) those += scores[*e];
  const auto scale = static_cast<float>(experts.scale);
  for (auto e = order.begin(); e != used; ++e)
    chosen[*e].push_back({row, scores[*e] / (experts.normalized ? those : all) * scale});
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
