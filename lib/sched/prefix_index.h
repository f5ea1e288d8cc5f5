// Maps blocks to the nodes that probably hold them: a shadow of all prefill caches.
//
// One flat open-addressing table maps the first 8 bytes of a block's hash (its tag) to the nodes
// that hold it, in 16 bytes an entry. Blocks with more than kInline holders keep a HolderSet aside.
// Entries stand in the order of their mixed tags, at most kFull full. The table grows by a quarter
// in one sequential pass: at most 24 bytes a block at any size. match() answers for all nodes in
// one walk along the prompt, reading ahead. The table is a hint: a node checks full hashes itself,
// so a colliding tag costs a wrong guess and nothing else.
//
// Besides the nodes' reports the index holds guesses: entries written when a request is sent to a
// node, so that its siblings in the same burst follow it. A guess expires unless the node confirms
// it.
//
// A node that is gone, or whose cache has to be listed anew, is not searched for in the table: its
// slot is retired. Matches leave it out from then on, and sweep() takes its entries out in parts;
// only then the slot may be given out again.
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

#include "base/huge_pages.h"
#include "base/time.h"
#include "sched/holder_set.h"
#include "sched/matches.h"

namespace mc::sched {

class PrefixIndex {
 public:
  using Slot = HolderSet::Slot;  // a node's number; the caller gives them out
  static constexpr Slot kSlotsMax = 0x7fff;

  explicit PrefixIndex(size_t entries_max = size_t{1} << 24);

  void add(Slot slot, uint64_t tag);
  void remove(Slot slot, uint64_t tag);
  // Forgets all of its blocks, guesses included. False: it had none, so it may be given out again
  // now; else once sweep() names it. Until then nothing is added for it.
  bool retire(Slot slot);
  // Looks at so many entries at most. Returns the retired slots that no entry has any more.
  std::vector<Slot> sweep(size_t entries);

  using Guess = uint64_t;
  Guess guess(Slot slot, std::span<const uint64_t> tags, Time until);
  void prolong(Guess guess, Time until);  // a longer life; no effect once it ended
  void withdraw(Guess guess);             // what was not confirmed goes at once
  void tick(Time now);                    // ends the guesses whose time has passed
  Time deadline() const;                  // of the next guess to end

  // For each slot below `slots`, how many of the prompt's blocks it holds from the first on.
  std::vector<uint32_t> match(std::span<const uint64_t> tags, size_t slots) const;
  // The same without a number for each slot: what it costs does not grow with them.
  Matches matches(std::span<const uint64_t> tags, size_t slots) const;

  size_t blocks() const { return used_; }
  uint64_t refused() const { return refused_; }
  size_t bytes() const;  // of the table and of what stands aside; walks the latter

 private:
  static constexpr size_t kInline = 3;
  static constexpr Slot kGuessed = HolderSet::kGuessed;
  static constexpr uint16_t kAside = 0xffff;  // as count: holders are in aside_
  struct Entry {
    uint64_t tag;
    Slot holders[kInline];  // or, aside, the set's number in the first two
    uint16_t count;         // 0: the entry is free
  };
  static_assert(sizeof(Entry) == 16);
  struct Guessed {
    Slot slot;
    Time until;
    std::vector<uint64_t> tags;
  };
  using End = std::pair<Time, Guess>;
  class Walk;  // of matches()

  size_t home(uint64_t tag) const;
  void prefetch(std::span<const uint64_t> tags) const;
  void end_at(Time until, Guess guess);
  void drop_stale_ends();
  bool stale(const End& end) const;
  size_t after(size_t at) const { return at + 1 == table_.size() ? 0 : at + 1; }
  size_t find(uint64_t tag) const;  // its place, or where it would stand
  Entry* place(uint64_t tag);       // found or made; nullptr when full
  void grow();
  void erase(size_t at);
  static uint32_t aside(const Entry& e) { return e.holders[0] | uint32_t{e.holders[1]} << 16; }
  void hold(Entry& e, Slot value);
  bool drop(Entry& e, Slot slot, bool guesses_only);  // true: no node holds it any more
  void remove(Slot slot, uint64_t tag, bool guesses_only);

  size_t entries_max_;
  using Table = std::vector<Entry, HugePages<Entry>>;
  Table table_;
  size_t used_ = 0;
  uint64_t refused_ = 0;
  std::vector<HolderSet> aside_;
  std::vector<uint32_t> aside_free_;
  RetiredSlots retired_;
  std::unordered_map<Guess, Guessed> guesses_;
  // When guesses end, the earliest on top; one of these that was withdrawn or prolonged since is
  // left in there until its turn, or until such are most of all.
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  Guess next_guess_ = 1;
};

}  // namespace mc::sched
