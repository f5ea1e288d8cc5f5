// Lists how many leading blocks of a prompt each node holds, in compact form.
//
// There is no number for every node. Blocks that many nodes hold form levels, nested sets of nodes.
// From the first block that few hold, the nodes that still match are listed. A node in neither
// holds nothing.
//
// Thread: values. Pure.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "sched/holder_set.h"

namespace mc::sched {

struct Matches {
  using Slot = HolderSet::Slot;
  struct Level {
    uint32_t length = 0;         // all of these nodes hold so many blocks or more
    size_t nodes = 0;            // how many they are
    std::vector<uint64_t> bits;  // node 64 k + i: bit i of word k
    bool has(Slot slot) const {
      return slot / 64u < bits.size() && (bits[slot / 64u] >> slot % 64u & 1) != 0;
    }
  };
  size_t slots = 0;                            // the nodes are 0 to slots - 1
  std::vector<Level> levels;                   // each within the one before, and longer
  std::vector<std::pair<Slot, uint32_t>> few;  // HolderSet::kListMax at most; in no level counts

  uint32_t of(Slot slot) const {
    for (const auto& [node, length] : few)
      if (node == slot) return length;
    return level_length(level_of(slot));
  }
  // The place of the longest level that the node is in; -1: in none.
  int level_of(Slot slot) const {
    int at = static_cast<int>(levels.size()) - 1;
    while (at >= 0 && !levels[static_cast<size_t>(at)].has(slot)) --at;
    return at;
  }
  uint32_t level_length(int at) const {
    return at < 0 ? 0 : levels[static_cast<size_t>(at)].length;
  }
  std::vector<uint32_t> lengths() const {  // of each node
    std::vector<uint32_t> all(slots);
    for (const Level& level : levels)  // a longer one is written over a shorter
      for (size_t k = 0; k < level.bits.size(); ++k) {
        uint32_t* const of = all.data() + 64 * k;
        if (level.bits[k] == ~uint64_t{0})
          std::fill_n(of, 64, level.length);
        else
          for (uint64_t left = level.bits[k]; left != 0; left &= left - 1)
            of[std::countr_zero(left)] = level.length;
      }
    for (const auto& [node, length] : few) all[node] = length;
    return all;
  }
  uint32_t longest() const {
    uint32_t most = levels.empty() ? 0 : levels.back().length;
    for (const auto& [node, length] : few) most = length > most ? length : most;
    return most;
  }
  // Word k of the nodes that are in level `at` and in no longer one, those of `few` too; -1: of
  // those in none.
  uint64_t word(int at, size_t k) const {
    const auto next = static_cast<size_t>(at) + 1;
    const uint64_t in = at < 0 ? all(k) : levels[static_cast<size_t>(at)].bits[k];
    return next < levels.size() ? in & ~levels[next].bits[k] : in;
  }
  // Calls visit(slot) for them, in order; stops when it returns true.
  template <class Visit>
  void each(int at, Visit visit) const {
    for (size_t k = 0; 64 * k < slots; ++k)
      for (uint64_t left = word(at, k); left != 0; left &= left - 1)
        if (visit(static_cast<Slot>(64 * k + static_cast<size_t>(std::countr_zero(left))))) return;
  }
  uint64_t all(size_t k) const {  // the bits of word k that stand for nodes
    const size_t rest = slots - 64 * k;
    return rest >= 64 ? ~uint64_t{0} : (uint64_t{1} << rest) - 1;
  }
};

}  // namespace mc::sched
