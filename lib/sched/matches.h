// Who holds how many of a prompt's blocks, from the first on, without a number for every node:
// blocks that many hold make levels, nested sets of nodes; from the first block that few hold the
// nodes still in step are listed. Who is in neither holds nothing.
//
// Thread: values. Pure.
#pragma once
#include <bit>
#include <cstdint>
#include <optional>
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
  uint32_t longest() const {
    uint32_t most = levels.empty() ? 0 : levels.back().length;
    for (const auto& [node, length] : few) most = length > most ? length : most;
    return most;
  }
  std::optional<Slot> any_of_longest() const {
    const uint32_t most = longest();
    for (const auto& [node, length] : few)
      if (length == most) return node;
    std::optional<Slot> found;
    if (!levels.empty())
      each_of_level(levels.size() - 1, [&](Slot slot) {
        found = slot;
        return true;
      });
    return found;
  }
  // Calls visit(slot) for the nodes of level `at` that are in no longer one, in order; those of
  // `few` too. Stops when it returns true.
  template <class Visit>
  void each_of_level(size_t at, Visit visit) const {
    const Level& level = levels[at];
    const Level* next = at + 1 < levels.size() ? &levels[at + 1] : nullptr;
    for (size_t k = 0; k < level.bits.size(); ++k)
      for (uint64_t left = level.bits[k] & ~(next ? next->bits[k] : 0); left != 0;
           left &= left - 1)
        if (visit(static_cast<Slot>(64 * k + static_cast<size_t>(std::countr_zero(left))))) return;
  }
};

}  // namespace mc::sched
