// Finds the cell of a block by its tag: a hash table of cell numbers in buckets of one cache line.
//
// A bucket has twelve places, each a byte of the hash (its print) and a number. A key that found
// its bucket full stands in one of the next; each bucket counts the keys that passed it, so that a
// search stops at the first one that none passed, and a key goes without a trace.
//
// The table grows by a sixth, in place and in parts. A key's bucket is its hash scaled to the size,
// so growth keeps the order of keys, and moves them towards the end, the last bucket's first. There
// is one table at all times: what is looked up has one place to begin at. grow_ahead() moves keys
// when there is time, from 13/16 full on. Above 7/8 each insert moves those of one bucket, a dozen.
// So a block takes 6.1 to 7.7 bytes.
//
// Thread: one owner. Pure.
// Source: the chunks of F14, Bronson and Shi, "Open-sourcing F14 for faster, more memory-efficient
// hash tables" (2019). Growth in order is that of linear hashing: Litwin, "Linear hashing: a new
// tool for file and table addressing" (1980), here by a sixth and not by one bucket.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/huge_pages.h"
#include "base/random.h"
#include "sched/index/cells.h"

namespace mc::sched {

class IndexBuckets {
 public:
  using At = IndexCells::At;

  IndexBuckets() { add_chunk(); }

  // The cell of the block, or kNone.
  At find(const IndexCells& cells, uint64_t tag) const {
    const uint64_t hash = mix(tag);
    for (size_t b = home(hash);; ++b) {
      const Bucket& bucket = bucket_at(b);
      for (Places left(bucket, print(hash)); left.any(); left.pop())
        if (const At at = bucket.cells[left.first()]; cells[at].tag == tag) return at;
      if (bucket.passed == 0) return IndexCells::kNone;
    }
  }
  // A cell that may be the block's, for a prefetch.
  At likely(uint64_t tag) const {
    const uint64_t hash = mix(tag);
    const Bucket& bucket = bucket_at(home(hash));
    const Places found(bucket, print(hash));
    return found.any() ? bucket.cells[found.first()] : IndexCells::kNone;
  }
  void prefetch(uint64_t tag) const { __builtin_prefetch(&bucket_at(home(mix(tag)))); }

  // Takes in a cell whose block is not in the table. The cells tell where keys move to.
  void insert(const IndexCells& cells, At at);
  // Moves the keys of so many buckets at most, if the table will have to grow soon.
  void grow_ahead(const IndexCells& cells, size_t buckets);
  void erase(uint64_t tag, At at);  // it is in the table
  size_t bytes() const { return grown_ * sizeof(Bucket); }
  uint64_t moved() const { return moved_; }  // keys, by all growth so far

 private:
  static constexpr size_t kPlaces = 12, kBucketsMin = 64;
  struct alignas(64) Bucket {
    uint8_t prints[kPlaces];  // 0: the place is free
    uint8_t passed;           // keys that stand behind it; kMany: so many or more, for ever
    At cells[kPlaces];
  };
  static_assert(sizeof(Bucket) == 64);
  static constexpr uint8_t kMany = 255;
  static constexpr size_t kChunk = 16 * kHugePage / sizeof(Bucket);

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
  static size_t scaled(uint64_t hash, size_t size) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<size_t>(static_cast<Wide>(hash) * size >> 64);
  }
  size_t home(uint64_t hash) const {
    const size_t b = scaled(hash, size_);
    return b < left_ ? b : scaled(hash, grown_);
  }
  static uint8_t print(uint64_t hash) { return static_cast<uint8_t>(hash | (hash % 256 == 0)); }
  Bucket& bucket_at(size_t b) const {
    return static_cast<Bucket*>(chunks_[b / kChunk].data())[b % kChunk];
  }
  void add_chunk() { chunks_.emplace_back(kChunk * sizeof(Bucket)); }
  bool growing() const { return grown_ != size_; }
  void begin_growth();
  void put(uint64_t hash, At at);
  void move_last(const IndexCells& cells);
  void read_ahead(const IndexCells& cells) const;

  // The last bucket may be followed by a few that only take keys which found theirs full.
  std::vector<ZeroedPages> chunks_;
  size_t size_ = kBucketsMin;   // buckets before the growth in progress
  size_t grown_ = kBucketsMin;  // and after it
  size_t left_ = kBucketsMin;   // keys of the first so many have not moved yet
  size_t used_ = 0;
  uint64_t moved_ = 0;
  std::vector<std::pair<uint64_t, At>> moving_;  // hash and cell
};

}  // namespace mc::sched
