// Allocates ranges of one segment in constant time. Free ranges wait in bins by size, eight per
// power of two, with a bitmap of non-empty bins. Allocating, freeing and coalescing take constant
// time for any number of ranges. A value that fits no single range may get several.
//
// A new allocator first takes ranges at given offsets (reserve), as a rebuilt master needs. The
// first allocation, or seal(), ends that phase and frees what only it needs.
//
// Thread: one owner. Pure: integers in, integers out. Sizes are rounded up to pages.
// Source: design, "Offset allocator per segment"; the bins are those of Masmano et al., "TLSF: a
// new dynamic memory allocator for real-time systems" (2004), applied to offsets instead of memory.
#pragma once
#include <array>
#include <cstdint>
#include <map>

#include "base/result.h"
#include "store/metadata/slab.h"

namespace mc::store {

class Allocator {
 public:
  static constexpr uint64_t kPagesMax = uint64_t{1} << 31;

  Allocator(uint64_t capacity, uint64_t page);

  // `bytes` in whole pages, at least one.
  uint64_t rounded(uint64_t bytes) const;
  // Returns: a range, or, if none is large enough, at most `pieces` ranges chained by next(). kNoId
  // if there is no space.
  Id allocate(uint64_t bytes, Id owner, size_t pieces = 1);
  // Takes a given range. Errors: kInvalid (misaligned, outside, or allocation has begun); kExists
  // (part of it is taken).
  Result<Id> reserve(uint64_t offset, uint64_t bytes, Id owner);
  // Reserves a gap between two segments; it does not count as capacity.
  Result<> wall(uint64_t offset, uint64_t bytes);
  void chain(Id last, Id next) { ranges_[last].b = next; }
  void seal();
  void free(Id head);  // the whole chain

  uint64_t offset(Id range) const { return uint64_t{ranges_[range].first} * page_; }
  uint64_t bytes(Id range) const { return uint64_t{ranges_[range].pages} * page_; }
  Id next(Id range) const { return ranges_[range].b; }
  void fetch(Id range) const { __builtin_prefetch(&ranges_[range]); }  // a prefetch
  Id owner(Id range) const { return ranges_[range].a; }
  void set_owner(Id head, Id owner);
  // All ranges by offset, taken or free (owner kNoId), from first() on.
  Id first() const { return capacity_ == 0 ? kNoId : head_; }
  Id after(Id range) const { return ranges_[range].after; }
  bool taken(Id range) const { return ranges_[range].taken; }
  // Frees part of the allocator's own memory, so that no call waits while millions of ranges go at
  // once. Only dismantle() and the destructor may follow. Returns: true if that was all.
  bool dismantle() {
    constexpr size_t kChunks = 256;
    return ranges_.shed(kChunks);
  }

  uint64_t capacity() const { return capacity_; }
  uint64_t used() const { return used_; }   // bytes taken, rounded to pages
  size_t ranges() const { return taken_; }  // taken
  size_t holes() const { return ranges_.size() - taken_; }
  uint64_t largest_free() const;  // within an eighth if there are very many holes
  // The fraction of the free bytes that a single value cannot use: 0 if they are one range.
  double fragmentation() const;
  uint64_t memory() const { return ranges_.bytes(); }

 private:
  static constexpr size_t kSub = 8, kBins = 32 * kSub;
  struct Range {
    uint32_t first = 0;  // page
    uint32_t pages : 31 = 0;
    uint32_t taken : 1 = 0;
    Id before = kNoId, after = kNoId;  // neighbours by offset
    Id a = kNoId, b = kNoId;           // free: links of its bin; taken: owner and next piece
    Id& spare() { return after; }
  };
  static size_t bin_of(uint64_t pages);   // the bin whose floor is at most `pages`
  static size_t bin_for(uint64_t pages);  // the first bin in which every range fits
  size_t bin_from(size_t bin) const;      // the first non-empty one from `bin` on, or kBins
  Id find(uint64_t pages) const;
  Id largest() const;
  void insert_free(Id range);
  void erase_free(Id range);
  Id cut(Id range, uint64_t pages, Id owner);  // takes its front; the rest stays free
  void free_one(Id range);

  uint64_t capacity_, span_, page_;  // span: gaps between segments included
  uint64_t used_ = 0;
  size_t taken_ = 0;
  Slab<Range, 64> ranges_;
  Id head_ = kNoId;
  bool sealed_ = false;
  std::map<uint32_t, Id> by_place_;  // free ranges, until sealed
  std::array<Id, kBins> bins_;
  std::array<uint64_t, kBins / 64> full_{};  // bins that are not empty
};

}  // namespace mc::store
