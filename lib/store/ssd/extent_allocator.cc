#include "store/ssd/extent_allocator.h"

namespace mc::store::ssd {

ExtentAllocator::ExtentAllocator(uint64_t capacity) {
  if (capacity > 0) add(0, capacity);
}

void ExtentAllocator::add(uint64_t offset, uint64_t bytes) {
  free_[offset] = bytes;
  by_size_.insert({bytes, offset});
}

void ExtentAllocator::drop(std::map<uint64_t, uint64_t>::iterator range) {
  by_size_.erase({range->second, range->first});
  free_.erase(range);
}

std::optional<uint64_t> ExtentAllocator::take(uint64_t bytes) {
  const auto best = by_size_.lower_bound({bytes, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [size, offset] = *best;
  drop(free_.find(offset));
  if (size > bytes) add(offset + bytes, size - bytes);
  used_ += bytes;
  return offset;
}

bool ExtentAllocator::take_at(uint64_t offset, uint64_t bytes) {
  auto range = free_.upper_bound(offset);
  if (range == free_.begin()) return false;
  --range;
  const auto [from, size] = *range;
  if (offset - from > size || bytes > size - (offset - from)) return false;
  drop(range);
  if (offset > from) add(from, offset - from);
  if (from + size > offset + bytes) add(offset + bytes, from + size - offset - bytes);
  used_ += bytes;
  return true;
}

void ExtentAllocator::give(uint64_t offset, uint64_t bytes) {
  used_ -= bytes;
  const auto after = free_.find(offset + bytes);
  if (after != free_.end()) {
    bytes += after->second;
    drop(after);
  }
  auto before = free_.lower_bound(offset);
  if (before != free_.begin() && (--before)->first + before->second == offset) {
    offset = before->first;
    bytes += before->second;
    drop(before);
  }
  add(offset, bytes);
}

}  // namespace mc::store::ssd
