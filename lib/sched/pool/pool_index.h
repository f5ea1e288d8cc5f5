// Maps blocks to the place in the KV store's pool that has them: a shadow of mc-master.
//
// It has kParts tables with open addressing. Each grows alone, so that with 16 million blocks a
// call moves 65,536 entries at most. An entry takes 8 bytes: 46 bits of the block's tag (the first
// 8 bytes of its hash), the tier, and the node's number. Growing by half at 85 % full leaves at
// most 17 bytes a block. The index is a hint: who fetches a block checks its full key.
//
// Bounded: over `entries_max` blocks new ones are not taken (see refused()).
// Thread: one owner. Pure.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mc::sched {

enum class PoolTier : uint8_t { kNone = 0, kMemory = 1, kDisk = 2 };

// Whether a node fetches blocks from the KV store's pool: where that is predicted to be faster than
// computing, or always.
enum class PoolUse : uint8_t { kNever = 0, kAuto = 1, kAlways = 2 };

struct PoolPlace {
  PoolTier tier = PoolTier::kNone;
  uint16_t node = 0;  // a number for the only one that has it in that tier; 0: several, or not told
  auto operator<=>(const PoolPlace&) const = default;
};

// Consecutive blocks of a prompt that the pool has.
struct PoolRun {
  uint64_t memory = 0, disk = 0;  // blocks
  uint64_t blocks() const { return memory + disk; }
};

// What the pool has of one prompt, as pieces: neighbouring blocks in one place, or in none. A
// prompt of a million tokens that one node has is one piece.
class PoolMatch {
 public:
  struct Piece {
    uint32_t first = 0, end = 0;  // blocks of the prompt
    uint32_t run_end = 0;  // of the pieces from this one on that the pool has; of a gap: first
    uint32_t disks = 0;    // blocks before `first` that only disks have
    PoolPlace place{};
  };
  // The run that begins with block `first` and ends before block `end`.
  PoolRun run(uint64_t first, uint64_t end) const;
  bool empty() const { return pieces_.empty(); }
  size_t size() const { return empty() ? 0 : pieces_.back().end; }  // none of later blocks is there
  const std::vector<Piece>& pieces() const { return pieces_; }
  size_t piece_of(uint64_t block) const;  // Requires: block < size(). O(log pieces).
  PoolPlace place(uint64_t block) const { return pieces_[piece_of(block)].place; }

 private:
  friend class PoolIndex;
  uint64_t disks_before(uint64_t block) const;  // block < size(), or the end of the last piece
  std::vector<Piece> pieces_;
};

class PoolIndex {
 public:
  explicit PoolIndex(size_t entries_max) : entries_max_(entries_max) {}

  void put(uint64_t tag, PoolPlace place);  // kNone: the pool has it no more
  void put(uint64_t tag, PoolTier tier) { put(tag, PoolPlace{tier, 0}); }
  PoolPlace place(uint64_t tag) const;
  PoolTier tier(uint64_t tag) const { return place(tag).tier; }
  // `held`: the longest match of any node. Blocks behind a gap count up to there: a node that holds
  // what is missing can go on from the pool.
  PoolMatch match(std::span<const uint64_t> tags, size_t held) const;

  size_t blocks() const { return blocks_; }
  uint64_t refused() const { return refused_; }
  size_t bytes() const;
  // Frees a few parts of an index that is not used any more. Returns: whether any are left.
  bool release_some();

 private:
  static constexpr size_t kParts = 256;
  static constexpr uint64_t kTierBits = 3, kNodeShift = 2, kPlaceBits = (1 << 18) - 1;
  struct Part {
    std::vector<uint64_t> slots;  // tag and place; 0: free
    size_t used = 0;
  };
  static size_t home(uint64_t mixed, size_t capacity);
  static size_t find(const Part& part, uint64_t tag, uint64_t mixed);
  static void grow(Part& part);
  static void erase(Part& part, size_t at);

  size_t entries_max_;
  std::array<Part, kParts> parts_;
  size_t blocks_ = 0, released_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace mc::sched
