#include "model/tokens/piece_table.h"

#include <algorithm>

namespace mc::model {

void PieceTable::grow() {
  constexpr size_t kAtFirst = 64;
  std::vector<Slot> old(slots_.empty() ? kAtFirst : slots_.size() * 2);
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t at = slot.hash & mask;
    while (slots_[at].id >= 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

void PieceTable::add(std::string_view piece, int32_t id) {
  if (2 * (size_ + 1) > slots_.size()) grow();
  const uint64_t hash = hash_of(piece);
  Slot& slot = slots_[place_of(piece, hash)];
  if (slot.id >= 0) return;
  slot = {hash, static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(piece.size()), id};
  bytes_ += piece;
  ++size_;
  longest_ = std::max(longest_, piece.size());
}

}  // namespace mc::model
