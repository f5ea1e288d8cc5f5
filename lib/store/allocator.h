// Gives out ranges of one segment: best fit over free extents, which coalesce when they are
// returned. Offsets and sizes are multiples of the page; every operation is O(log n).
//
// Thread: one owner. Pure: integers in, integers out.
// Source: design, "offset allocator per segment"; best fit with coalescing is textbook.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/result.h"

namespace mc::store {

class Allocator {
 public:
  Allocator(uint64_t capacity, uint64_t page);

  // What `bytes` takes: whole pages, at least one.
  uint64_t rounded(uint64_t bytes) const;
  std::optional<uint64_t> allocate(uint64_t bytes);  // its offset
  // Takes a given range, as a rebuilt master does. Errors: kInvalid when it is misaligned or
  // outside; kExists when any of it is taken.
  Result<> reserve(uint64_t offset, uint64_t bytes);
  void free(uint64_t offset);  // of a range given out

  uint64_t capacity() const { return capacity_; }
  uint64_t used() const { return used_; }  // bytes given out, rounded
  uint64_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  size_t ranges() const { return taken_.size(); }

 private:
  void insert_free(uint64_t offset, uint64_t bytes);
  void erase_free(std::map<uint64_t, uint64_t>::iterator it);

  uint64_t capacity_, page_;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> taken_;               // offset: bytes
  std::map<uint64_t, uint64_t> free_;                // offset: bytes; no two are adjacent
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // bytes, offset
};

}  // namespace mc::store
