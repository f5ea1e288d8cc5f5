// Finds the id of a piece of text: a hash table over one block of bytes.
//
// Thread: const calls, any. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace mc::model {

class PieceTable {
 public:
  // Keeps what is there under that name already.
  void add(std::string_view piece, int32_t id);
  int32_t find(std::string_view piece) const {  // -1: none
    return slots_.empty() ? -1 : slots_[place_of(piece, hash_of(piece))].id;
  }
  size_t size() const { return size_; }
  size_t longest() const { return longest_; }  // bytes of the longest piece

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t begin = 0, size = 0;
    int32_t id = -1;
  };
  static uint64_t hash_of(std::string_view piece) { return xxh3(piece); }
  // The slot that has the piece, or the free one where it would be.
  size_t place_of(std::string_view piece, uint64_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].id >= 0 &&
           !(slots_[at].hash == hash && slots_[at].size == piece.size() &&
             std::string_view(bytes_).substr(slots_[at].begin, slots_[at].size) == piece))
      at = (at + 1) & mask;
    return at;
  }
  void grow();

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  std::string bytes_;
  size_t size_ = 0, longest_ = 0;
};

}  // namespace mc::model
