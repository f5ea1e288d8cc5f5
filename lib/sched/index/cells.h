// Stores the entries of a prefix index, 16 bytes each, so that blocks which were added one after
// another stand one after another: a prompt is then read as a run, not as single blocks.
//
// A cell never moves while it is in use. A freed one is taken again: the neighbour of the block
// added before, if it is free; else the beginning of a free run; only then a new one at the end.
//
// Thread: one owner. Pure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/huge_pages.h"

namespace mc::sched {

struct IndexCell {
  static constexpr size_t kInline = 3;
  static constexpr uint16_t kAside = 0xffff;  // as count: more holders, in a set elsewhere
  uint64_t tag;                               // of a free cell: the free ones before and after it
  uint16_t holders[kInline];
  uint16_t count;                                                           // 0: the cell is free
  uint32_t set() const { return holders[0] | uint32_t{holders[1]} << 16; }  // its number
  // Two cells with the same have the same holders.
  uint64_t all_holders() const {
    uint64_t all;
    std::memcpy(&all, holders, sizeof all);
    return all;
  }
};
static_assert(sizeof(IndexCell) == 16);

class IndexCells {
 public:
  using At = uint32_t;
  static constexpr At kNone = UINT32_MAX;

  // A cell for `tag` without holders; the caller gives it some. near: of the block before it.
  At take(uint64_t tag, At near);
  void free(At at);

  IndexCell& operator[](At at) { return chunks_[at / kChunk][at % kChunk]; }
  const IndexCell& operator[](At at) const { return chunks_[at / kChunk][at % kChunk]; }
  // One past the last cell that lies behind this one in memory.
  const IndexCell* end_of_run(At at) const {
    const auto& chunk = chunks_[at / kChunk];
    return chunk.data() + chunk.size();
  }
  // Is it the place of this block? False for any place that does not exist.
  bool is(At at, uint64_t tag) const {
    return at < size_ && (*this)[at].tag == tag && (*this)[at].count > 0;
  }
  At size() const { return size_; }  // cells in use and freed ones
  size_t bytes() const { return size_ * sizeof(IndexCell); }

 private:
  static constexpr size_t kChunk = 16 * kHugePage / sizeof(IndexCell);
  static constexpr uint64_t links(At before, At after) { return before | uint64_t{after} << 32; }
  At before(At at) const { return static_cast<At>((*this)[at].tag); }
  At after(At at) const { return static_cast<At>((*this)[at].tag >> 32); }
  bool is_free(At at) const { return at < size_ && (*this)[at].count == 0; }
  void unlink(At at);

  // All but the last are full. Each is reserved whole, and becomes resident as it fills.
  std::vector<std::vector<IndexCell, HugePages<IndexCell>>> chunks_;
  At size_ = 0;
  At free_ = kNone;  // the one freed last
};

}  // namespace mc::sched
