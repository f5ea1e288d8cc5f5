#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace mc::model {
namespace {

int32_t most_likely(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The likeliest `count` tokens in order; among equals the lowest id.
std::vector<int32_t> ranked(std::span<const float> logits, size_t count) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(ids.begin(), end, ids.end(), before);
  ids.erase(end, ids.end());
  return ids;
}

}  // namespace

int32_t sample(std::span<float> logits, const Draw& draw) {
  for (const int32_t id : draw.never)
    if (id >= 0 && static_cast<size_t>(id) < logits.size())
      logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  if (!(draw.temperature > 0) || draw.top_k == 1) return most_likely(logits);
  const size_t most = draw.top_k == 0 ? logits.size() : std::min<size_t>(draw.top_k, logits.size());
  const std::vector<int32_t> ids = ranked(logits, most);
  const double top = logits[static_cast<size_t>(ids[0])];
  std::vector<double> shares;
  double total = 0;
  for (const int32_t id : ids) {
    shares.push_back(std::exp((logits[static_cast<size_t>(id)] - top) / draw.temperature));
    total += shares.back();
  }
  const double wanted = total * std::clamp(draw.top_p, 0.0, 1.0);
  double kept = 0;
  size_t count = 0;
  while (count < shares.size() && (count == 0 || kept < wanted)) kept += shares[count++];
  const uint64_t bits = mix64(draw.seed + mix64(draw.position));
  double left = static_cast<double>(bits >> 11) * 0x1p-53 * kept;
  for (size_t i = 0; i < count; ++i) {
    left -= shares[i];
    if (left < 0) return ids[i];
  }
  return ids[0];
}

}  // namespace mc::model
