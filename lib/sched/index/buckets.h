// Finds the cell of a block by its tag: a hash table of cell numbers in buckets of one cache line.
//
// A bucket has twelve places, each a byte of the hash (its print) and a number. A key that found
// its bucket full stands in one of the next; each bucket counts the keys that passed it, so that a
// search stops at the first one that none passed, and a key goes without a trace. The table is at
// most 7/8 full and grows by a sixth: from 6.1 to 7.2 bytes a block.
//
// Thread: one owner. Pure.
// Source: the chunks of F14, Bronson and Shi, "Open-sourcing F14 for faster, more memory-efficient
// hash tables" (2019).
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/huge_pages.h"
#include "base/random.h"
#include "sched/index/cells.h"

namespace mc::sched {

class IndexBuckets {
 public:
  using At = IndexCells::At;

  IndexBuckets() : buckets_(kBucketsMin) {}

  // The cell of the block, or kNone.
  At find(const IndexCells& cells, uint64_t tag) const {
    const uint64_t hash = mix(tag);
    for (size_t b = home(hash);; b = next(b)) {
      const Bucket& bucket = buckets_[b];
      for (Places left(bucket, print(hash)); left.any(); left.pop())
        if (const At at = bucket.cells[left.first()]; cells[at].tag == tag) return at;
      if (bucket.passed == 0) return IndexCells::kNone;
    }
  }
  // A cell that may be the block's, for a prefetch.
  At likely(uint64_t tag) const {
    const uint64_t hash = mix(tag);
    const Bucket& bucket = buckets_[home(hash)];
    const Places found(bucket, print(hash));
    return found.any() ? bucket.cells[found.first()] : IndexCells::kNone;
  }
  void prefetch(uint64_t tag) const { __builtin_prefetch(&buckets_[home(mix(tag))]); }

  // Takes in a cell whose block is not in the table. The cells tell what a larger table holds.
  void insert(const IndexCells& cells, At at);
  void erase(uint64_t tag, At at);  // it is in the table
  size_t bytes() const { return buckets_.size() * sizeof(Bucket); }

 private:
  static constexpr size_t kPlaces = 12, kBucketsMin = 64;
  struct alignas(64) Bucket {
    uint8_t prints[kPlaces];  // 0: the place is free
    uint8_t passed;           // keys that stand behind it; kMany: so many or more, for ever
    At cells[kPlaces];
  };
  static_assert(sizeof(Bucket) == 64);
  static constexpr uint8_t kMany = 255;

  // The places of a bucket with a given print.
  class Places {
   public:
    Places(const Bucket& bucket, uint8_t print) {
      uint32_t high;
      std::memcpy(&low_, bucket.prints, 8);
      std::memcpy(&high, bucket.prints + 8, 4);
      low_ = zeros(low_ ^ print * kOnes);
      high_ = static_cast<uint32_t>(zeros(high ^ print * kOnes));
    }
    bool any() const { return (low_ | high_) != 0; }
    size_t first() const {
      const int bits = low_ != 0 ? std::countr_zero(low_) : 64 + std::countr_zero(high_);
      return static_cast<size_t>(bits) / 8;
    }
    void pop() {
      if (low_ != 0)
        low_ &= low_ - 1;
      else
        high_ &= high_ - 1;
    }

   private:
    static constexpr uint64_t kOnes = 0x0101010101010101, kSevens = 0x7f7f7f7f7f7f7f7f;
    // The upper bit of each byte that is 0.
    static uint64_t zeros(uint64_t x) { return ~(((x & kSevens) + kSevens) | x | kSevens); }
    uint64_t low_, high_;
  };

  // Tags are hash bytes already, but a peer chose them: mixing keeps crafted ones from clustering.
  static uint64_t mix(uint64_t tag) { return mix64(tag); }
  size_t home(uint64_t hash) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<size_t>(static_cast<Wide>(hash) * buckets_.size() >> 64);
  }
  static uint8_t print(uint64_t hash) { return static_cast<uint8_t>(hash | (hash % 256 == 0)); }
  size_t next(size_t bucket) const { return bucket + 1 == buckets_.size() ? 0 : bucket + 1; }
  void put(uint64_t tag, At at);
  void grow(const IndexCells& cells);

  std::vector<Bucket, HugePages<Bucket>> buckets_;
  size_t used_ = 0;
};

}  // namespace mc::sched
