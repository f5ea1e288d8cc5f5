// Counts how many nodes cache the hottest blocks, over time.
// Each sample reads all caches. Blocks rank by the number of caches that held them, summed over all
// samples.
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
  // The copies in each sample of the block with this rank (from 1); all 0 if no block has it.
  std::vector<uint32_t> series(size_t rank) const;

 private:
  std::unordered_map<uint64_t, uint32_t> now_;
  std::unordered_map<uint64_t, uint64_t> seen_;
  std::vector<std::vector<std::pair<uint64_t, uint32_t>>> samples_;  // tag, copies
};

}  // namespace mc::sim
