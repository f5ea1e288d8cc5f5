#include "serve/kvcache/block_table.h"

#include <utility>

#include "base/result.h"

namespace mc::serve {

void BlockTable::insert(uint64_t tag, BlockId block) {
  if ((size_ + 1) * 4 > slots_.size() * 3) grow();
  size_t i = home(tag);
  while (slots_[i].block != kNoBlock) i = after(i);
  slots_[i] = {tag, block};
  ++size_;
}

void BlockTable::erase(uint64_t tag, BlockId block) {
  MC_CHECK(!slots_.empty());
  size_t hole = home(tag);
  while (slots_[hole].block != block) {
    MC_CHECK(slots_[hole].block != kNoBlock);
    hole = after(hole);
  }
  // Later slots move up, but never before their home. So no tombstones slow down lookups.
  for (size_t i = after(hole); slots_[i].block != kNoBlock; i = after(i)) {
    const size_t mask = slots_.size() - 1;
    const size_t from_home = (i - home(slots_[i].tag)) & mask, from_hole = (i - hole) & mask;
    if (from_home < from_hole) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = {};
  --size_;
}

void BlockTable::grow() {
  constexpr size_t kFirst = 16;
  const std::vector<Slot> old =
      std::exchange(slots_, std::vector<Slot>(slots_.empty() ? kFirst : 2 * slots_.size()));
  size_ = 0;
  for (const Slot& s : old)
    if (s.block != kNoBlock) insert(s.tag, s.block);
}

}  // namespace mc::serve
