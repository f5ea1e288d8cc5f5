// In how many nodes' caches the hottest blocks are, over time. Every sample looks at all caches;
// blocks rank by in how many caches they were seen, over all samples.
//
// Thread: one owner. Pure: no clock.
// Source: Mooncake, figure 18.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mc::sim {

class Copies {
 public:
  void add(std::span<const uint64_t> tags);  // of one node
  void end_sample();
  // The copies of the block of that rank (from 1) in each sample; all 0 when there are fewer.
  std::vector<uint32_t> series(size_t rank) const;

 private:
  std::unordered_map<uint64_t, uint32_t> now_;
  std::unordered_map<uint64_t, uint64_t> seen_;
  std::vector<std::vector<std::pair<uint64_t, uint32_t>>> samples_;  // tag, copies
};

}  // namespace mc::sim
