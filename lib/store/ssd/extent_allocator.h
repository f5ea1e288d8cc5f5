// Allocates extents of the offset backend's data file. Best fit; adjacent free extents coalesce.
// Offsets and sizes are multiples of the page. Every operation is O(log n).
//
// Thread: one owner. Pure: integers in, integers out.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace mc::store::ssd {

class ExtentAllocator {
 public:
  explicit ExtentAllocator(uint64_t capacity);
  std::optional<uint64_t> take(uint64_t bytes);   // returns its offset
  bool take_at(uint64_t offset, uint64_t bytes);  // false: part of it is taken
  void give(uint64_t offset, uint64_t bytes);
  uint64_t used() const { return used_; }
  uint64_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  void add(uint64_t offset, uint64_t bytes);
  void drop(std::map<uint64_t, uint64_t>::iterator range);
  std::map<uint64_t, uint64_t> free_;                // offset to bytes; no two are adjacent
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // bytes, offset
  uint64_t used_ = 0;
};

}  // namespace mc::store::ssd
