#include "store/allocator.h"

#include <algorithm>
#include <iterator>

namespace mc::store {

Allocator::Allocator(uint64_t capacity, uint64_t page)
    : capacity_(capacity - capacity % page), page_(page) {
  if (capacity_ > 0) insert_free(0, capacity_);
}

uint64_t Allocator::rounded(uint64_t bytes) const {
  if (bytes > capacity_) return bytes;  // too large in any case; rounding could overflow
  return std::max((bytes + page_ - 1) / page_, uint64_t{1}) * page_;
}

void Allocator::insert_free(uint64_t offset, uint64_t bytes) {
  free_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void Allocator::erase_free(std::map<uint64_t, uint64_t>::iterator it) {
  by_size_.erase({it->second, it->first});
  free_.erase(it);
}

std::optional<uint64_t> Allocator::allocate(uint64_t bytes) {
  const uint64_t want = rounded(bytes);
  const auto fit = by_size_.lower_bound({want, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [size, offset] = *fit;
  erase_free(free_.find(offset));
  if (size > want) insert_free(offset + want, size - want);
  taken_.emplace(offset, want);
  used_ += want;
  return offset;
}

Result<> Allocator::reserve(uint64_t offset, uint64_t bytes) {
  const uint64_t want = rounded(bytes);
  if (offset % page_ != 0 || offset > capacity_ || want > capacity_ - offset)
    return fail(Code::kInvalid, "range %llu+%llu: not in whole pages of a segment of %llu bytes",
                static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes),
                static_cast<unsigned long long>(capacity_));
  auto it = free_.upper_bound(offset);
  if (it == free_.begin() || std::prev(it)->first + std::prev(it)->second < offset + want)
    return fail(Code::kExists, "range %llu+%llu: overlaps one that is taken",
                static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes));
  --it;
  const auto [start, size] = *it;
  erase_free(it);
  if (start < offset) insert_free(start, offset - start);
  if (offset + want < start + size) insert_free(offset + want, start + size - offset - want);
  taken_.emplace(offset, want);
  used_ += want;
  return {};
}

void Allocator::free(uint64_t offset) {
  const auto it = taken_.find(offset);
  MC_CHECK(it != taken_.end());
  uint64_t start = offset, bytes = it->second;
  used_ -= bytes;
  taken_.erase(it);
  auto next = free_.lower_bound(start);
  if (next != free_.end() && next->first == start + bytes) {
    bytes += next->second;
    erase_free(next);
    next = free_.lower_bound(start);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == start) {
      start = before->first;
      bytes += before->second;
      erase_free(before);
    }
  }
  insert_free(start, bytes);
}

}  // namespace mc::store
