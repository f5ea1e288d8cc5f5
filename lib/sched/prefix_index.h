// Maps blocks to the nodes that probably hold them: a shadow of all prefill caches.
//
// Blocks are known by the first 8 bytes of their hash (the tag). A block and the nodes that hold it
// are a cell of 16 bytes; a hash table of cell numbers finds it. Cells of blocks that were added
// one after another are neighbours, and a walk along a prompt looks at the neighbour first: a
// prompt is read as a few runs, as from a radix tree, and single blocks are looked up only where
// runs part. Where there are no runs the walk reads ahead. It ends at the first block that nobody
// holds, or that none of the nodes holds which had all before. Blocks with more than kInline
// holders keep a HolderSet aside. At most 24 bytes a block at any size. match() answers for all
// nodes in one walk. The index is a hint: a node checks full hashes itself, so a colliding tag
// costs a wrong guess and nothing else.
//
// Besides the nodes' reports the index holds guesses: entries written when a request is sent to a
// node, so that its siblings in the same burst follow it. A guess expires unless the node confirms
// it.
//
// A node that is gone, or whose cache has to be listed anew, is not searched for: its slot is
// retired. Matches leave it out from then on, and sweep() takes it out of the cells in parts; only
// then the slot may be given out again.
//
// Bounded: over `entries_max` distinct blocks new ones are not taken (see refused()).
// Thread: one owner. Pure: time is an argument.
// Source: Mooncake paper, Algorithm 1, FindBestPrefixMatch.
#pragma once
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/time.h"
#include "sched/holder_set.h"
#include "sched/index/buckets.h"
#include "sched/index/cells.h"
#include "sched/matches.h"

namespace mc::sched {

class PrefixIndex {
 public:
  using Slot = HolderSet::Slot;  // a node's number; the caller gives them out
  static constexpr Slot kSlotsMax = 0x7fff;

  explicit PrefixIndex(size_t entries_max = size_t{1} << 24);

  // Blocks in the order of a prompt, or as events name them; many at once cost less than each.
  void add(Slot slot, std::span<const uint64_t> tags);
  void remove(Slot slot, std::span<const uint64_t> tags);
  void add(Slot slot, uint64_t tag) { add(slot, {&tag, 1}); }
  void remove(Slot slot, uint64_t tag) { remove(slot, {&tag, 1}); }
  // Forgets all of its blocks, guesses included. False: it had none, so it may be given out again
  // now; else once sweep() names it. Until then nothing is added for it.
  bool retire(Slot slot);
  // Looks at so many cells at most. Returns the retired slots that no cell has any more.
  std::vector<Slot> sweep(size_t cells);

  using Guess = uint64_t;
  Guess guess(Slot slot, std::span<const uint64_t> tags, Time until);
  void prolong(Guess guess, Time until);  // a longer life; no effect once it ended
  void withdraw(Guess guess);             // what was not confirmed goes at once
  // Ends the guesses whose time has passed; moves a part of a table that grows, so that decisions
  // need not. To be called some times a second.
  void tick(Time now);
  Time deadline() const;  // of the next guess to end

  // For each slot below `slots`, how many of the prompt's blocks it holds from the first on.
  std::vector<uint32_t> match(std::span<const uint64_t> tags, size_t slots) const;
  // The same without a number for each slot: what it costs does not grow with them.
  Matches matches(std::span<const uint64_t> tags, size_t slots) const;

  size_t blocks() const { return used_; }
  uint64_t refused() const { return refused_; }
  size_t bytes() const;  // of cells, table and what stands aside; walks the latter

 private:
  using At = IndexCells::At;
  using Cell = IndexCell;
  static constexpr size_t kInline = Cell::kInline;
  static constexpr At kNone = IndexCells::kNone;
  static constexpr Slot kGuessed = HolderSet::kGuessed;
  struct Guessed {
    Slot slot;
    Time until;
    std::vector<uint64_t> tags;
  };
  using End = std::pair<Time, Guess>;
  class Walk;    // of matches()
  class Search;  // of blocks in the order of a prompt

  void end_at(Time until, Guess guess);
  void drop_stale_ends();
  bool stale(const End& end) const;
  void hold_all(std::span<const uint64_t> tags, Slot value);
  void drop_all(std::span<const uint64_t> tags, Slot slot, bool guesses_only);
  At place(uint64_t tag, At near);  // kNone when full
  void erase(At at);
  void hold(Cell& c, Slot value);
  bool drop(Cell& c, Slot slot, bool guesses_only);  // true: no node holds it any more

  size_t entries_max_;
  IndexCells cells_;
  IndexBuckets buckets_;
  At last_ = kNone;  // of the block that was added last
  size_t used_ = 0;
  uint64_t refused_ = 0;
  HolderSets aside_;
  RetiredSlots retired_;
  std::unordered_map<Guess, Guessed> guesses_;
  // When guesses end, the earliest on top; one of these that was withdrawn or prolonged since is
  // left in there until its turn, or until such are most of all.
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  Guess next_guess_ = 1;
};

}  // namespace mc::sched
