#include "model/forward/logits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mc::model {

void add_bias(std::span<float> logits, std::span<const Bias> bias) {
  for (const Bias& b : bias)
    if (b.id >= 0 && static_cast<size_t>(b.id) < logits.size())
      logits[static_cast<size_t>(b.id)] += b.value;
}

void penalize(std::span<float> logits, const Penalties& p, std::span<const int32_t> prompt,
              std::span<const int32_t> generated) {
  if (p.none()) return;
  std::vector<uint32_t> times(logits.size());
  std::vector<bool> seen(logits.size());
  for (const auto& [tokens, count] : {std::pair(prompt, 0u), std::pair(generated, 1u)})
    for (const int32_t token : tokens) {
      if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
      seen[static_cast<size_t>(token)] = true;
      times[static_cast<size_t>(token)] += count;
    }
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!seen[i]) continue;
    double logit = logits[i];
    logit = logit > 0 ? logit / p.repetition : logit * p.repetition;
    if (times[i] > 0) logit -= p.frequency * times[i] + p.presence;
    logits[i] = static_cast<float>(logit);
  }
}

double log_sum(std::span<const float> logits) {
  if (logits.empty()) return 0;
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

std::vector<int32_t> likeliest(std::span<const float> logits, size_t n) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  n = std::min(n, ids.size());
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(), before);
  ids.resize(n);
  return ids;
}

}  // namespace mc::model
