#include "sim/cluster/replication.h"

#include <algorithm>

namespace mc::sim {

void Copies::add(std::span<const uint64_t> tags) {
  for (const uint64_t tag : tags) ++now_[tag];
}

void Copies::end_sample() {
  for (const auto& [tag, copies] : now_) seen_[tag] += copies;
  samples_.emplace_back(now_.begin(), now_.end());
  now_.clear();
}

std::vector<uint32_t> Copies::series(size_t rank) const {
  std::vector<uint32_t> out(samples_.size());
  if (rank < 1 || rank > seen_.size()) return out;
  std::vector<std::pair<uint64_t, uint64_t>> order;  // seen, tag
  for (const auto& [tag, seen] : seen_) order.emplace_back(seen, tag);
  const auto at = order.begin() + static_cast<std::ptrdiff_t>(rank - 1);
  std::nth_element(order.begin(), at, order.end(), std::greater<>());
  for (size_t i = 0; i < samples_.size(); ++i)
    for (const auto& [tag, copies] : samples_[i])
      if (tag == at->second) out[i] = copies;
  return out;
}

}  // namespace mc::sim
