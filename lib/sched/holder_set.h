// Stores the nodes that hold one block, when they are many.
//
// Up to kListMax it is a list; above, a bitmap that matches a cluster 64 nodes at a time. A holder
// may be a guess.
//
// Thread: one owner. Pure.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mc::sched {

class HolderSet {
 public:
  using Slot = uint16_t;                    // below 0x8000
  static constexpr Slot kGuessed = 0x8000;  // set in a value that is only a guess
  static constexpr size_t kListMax = 64;

  // Adds values[0..] to an empty set; none appears twice.
  void assign(std::span<const Slot> values);
  void clear();
  size_t size() const { return size_; }

  // A report confirms a guess; a guess takes nothing from a report.
  void hold(Slot value);
  // True when it is gone: it was there, and as a guess if `guesses_only`.
  bool drop(Slot slot, bool guesses_only);
  bool holds(Slot slot) const;

  // The same nodes and guesses; false when a list has them in another order.
  bool operator==(const HolderSet& other) const {
    return list_ == other.list_ && bits_ == other.bits_;
  }
  bool wide() const { return !bits_.empty(); }  // a bitmap
  std::span<const Slot> list() const { return list_; }
  // The bitmap's nodes 64 k to 64 k + 63.
  uint64_t word(size_t k) const { return 2 * k < bits_.size() ? bits_[2 * k] : 0; }
  size_t words() const { return bits_.size() / 2; }
  std::vector<Slot> values() const;  // in no order, guesses marked
  void prefetch() const {
    __builtin_prefetch(list_.data());
    __builtin_prefetch(bits_.data());
  }
  size_t heap_bytes() const { return list_.capacity() * sizeof(Slot) + bits_.capacity() * 8; }

 private:
  void widen();
  void narrow();
  uint32_t size_ = 0;
  std::vector<Slot> list_;
  std::vector<uint64_t> bits_;  // pairs of words: who holds it, and who of these is a guess
};

// The sets of many blocks, known by number. A set never moves, so that one more costs the same
// however many there are. A freed number is given out again.
class HolderSets {
 public:
  using Number = uint32_t;

  HolderSet& operator[](Number at) { return chunks_[at / kChunk][at % kChunk]; }
  const HolderSet& operator[](Number at) const { return chunks_[at / kChunk][at % kChunk]; }

  Number take() {  // an empty one
    if (!free_.empty()) {
      const Number at = free_.back();
      free_.pop_back();
      return at;
    }
    if (size_ % kChunk == 0) chunks_.emplace_back().reserve(kChunk);
    chunks_.back().emplace_back();
    return size_++;
  }
  void free(Number at) {
    (*this)[at].clear();
    free_.push_back(at);
  }
  size_t bytes() const {  // walks all
    size_t n = chunks_.size() * kChunk * sizeof(HolderSet) + free_.capacity() * sizeof(Number);
    for (const auto& chunk : chunks_)
      for (const HolderSet& set : chunk) n += set.heap_bytes();
    return n;
  }

 private:
  static constexpr size_t kChunk = 64;
  std::vector<std::vector<HolderSet>> chunks_;  // all but the last are full
  std::vector<Number> free_;
  Number size_ = 0;
};

// Slots whose nodes are gone while holders may still name them, and how far a pass over the table
// of those has come.
class RetiredSlots {
 public:
  using Slot = HolderSet::Slot;
  void used(Slot slot) { set(used_, slot); }  // a holder may name it
  bool retire(Slot slot);                     // false: no holder names it
  bool has(Slot slot) const {
    return slot / 64u < bits_.size() && (bits_[slot / 64u] >> slot % 64u & 1) != 0;
  }
  uint64_t word(size_t k) const { return k < bits_.size() ? bits_[k] : 0; }
  const std::vector<Slot>& all() const { return all_; }
  bool any() const { return !all_.empty(); }
  std::vector<Slot> end_pass();  // those that this pass was for

  size_t at = 0;  // entries before this one name none of those that the pass is for

 private:
  static void set(std::vector<uint64_t>& bits, Slot slot) {
    if (slot / 64u >= bits.size()) bits.resize(slot / 64u + 1);
    bits[slot / 64u] |= uint64_t{1} << slot % 64u;
  }
  std::vector<Slot> all_;
  std::vector<uint64_t> bits_, used_;
  size_t of_pass_ = 0;  // the first of them
};

}  // namespace mc::sched
