// Maps a key to its block: a flat open-addressing hash table.
// A slot has 16 bytes, and at most three quarters of the slots are used. It holds the first 8 bytes
// of the key and the block's number; the whole key is in the block. A lookup therefore touches one
// cache line of the table, and the block that the caller needs anyway.
//
// Thread: one owner. Pure. Grows by doubling and never shrinks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mc::serve {

using BlockId = uint32_t;
inline constexpr BlockId kNoBlock = UINT32_MAX;

class BlockTable {
 public:
  // The block of that tag for which `is(block)` holds; kNoBlock: none.
  template <class Is>
  BlockId find(uint64_t tag, const Is& is) const {
    if (slots_.empty()) return kNoBlock;
    for (size_t i = home(tag);; i = after(i)) {
      if (slots_[i].block == kNoBlock) return kNoBlock;
      if (slots_[i].tag == tag && is(slots_[i].block)) return slots_[i].block;
    }
  }
  void insert(uint64_t tag, BlockId block);  // its key must not be there
  void erase(uint64_t tag, BlockId block);   // it must be there
  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t tag = 0;
    BlockId block = kNoBlock;
  };
  size_t home(uint64_t tag) const { return tag & (slots_.size() - 1); }
  size_t after(size_t i) const { return (i + 1) & (slots_.size() - 1); }
  void grow();

  std::vector<Slot> slots_;  // none, or a power of two
  size_t size_ = 0;
};

}  // namespace mc::serve
