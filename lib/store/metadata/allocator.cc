#include "store/metadata/allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace mc::store {
namespace {
constexpr size_t kLook = 16;  // ranges examined in the bin below, or in the largest
}

Allocator::Allocator(uint64_t capacity, uint64_t page)
    : capacity_(std::min(capacity / page, kPagesMax - 1) * page), span_(capacity_), page_(page) {
  bins_.fill(kNoId);
  if (capacity_ == 0) return;
  head_ = ranges_.take();
  ranges_[head_].pages = static_cast<uint32_t>(capacity_ / page_) & 0x7fffffff;
  insert_free(head_);
}

uint64_t Allocator::rounded(uint64_t bytes) const {
  if (bytes > capacity_) return bytes;  // too large in any case; rounding could overflow
  return std::max((bytes + page_ - 1) / page_, uint64_t{1}) * page_;
}

size_t Allocator::bin_of(uint64_t pages) {
  if (pages < kSub) return pages;
  const auto log = static_cast<size_t>(std::bit_width(pages)) - 1;  // >= 3
  return (log - 2) * kSub + ((pages >> (log - 3)) & (kSub - 1));
}

size_t Allocator::bin_for(uint64_t pages) {
  if (pages < kSub) return pages;
  const auto log = static_cast<size_t>(std::bit_width(pages)) - 1;
  return bin_of(pages + (uint64_t{1} << (log - 3)) - 1);
}

size_t Allocator::bin_from(size_t bin) const {
  for (size_t word = bin / 64; word < full_.size(); ++word) {
    uint64_t bits = full_[word];
    if (word == bin / 64) bits &= ~uint64_t{0} << (bin % 64);
    if (bits != 0) return word * 64 + static_cast<size_t>(std::countr_zero(bits));
  }
  return kBins;
}

void Allocator::insert_free(Id range) {
  Range& r = ranges_[range];
  r.taken = 0;
  const size_t bin = bin_of(r.pages);
  r.a = kNoId;
  r.b = bins_[bin];
  if (r.b != kNoId) ranges_[r.b].a = range;
  bins_[bin] = range;
  full_[bin / 64] |= uint64_t{1} << (bin % 64);
  if (!sealed_) by_place_.emplace(r.first, range);
}

void Allocator::erase_free(Id range) {
  Range& r = ranges_[range];
  const size_t bin = bin_of(r.pages);
  (r.a == kNoId ? bins_[bin] : ranges_[r.a].b) = r.b;
  if (r.b != kNoId) ranges_[r.b].a = r.a;
  if (bins_[bin] == kNoId) full_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  if (!sealed_) by_place_.erase(r.first);
}

// A range of at least `pages`. Bins in which every range fits come first. In the bin below, whose
// ranges differ by an eighth, it tries a few.
Id Allocator::find(uint64_t pages) const {
  const size_t bin = bin_from(bin_for(pages));
  if (bin < kBins) return bins_[bin];
  Id range = bins_[bin_of(pages)];
  for (size_t i = 0; i < kLook && range != kNoId; ++i, range = ranges_[range].b)
    if (ranges_[range].pages >= pages) return range;
  return kNoId;
}

Id Allocator::largest() const {
  size_t last = kBins;
  for (size_t word = full_.size(); word-- > 0 && last == kBins;)
    if (full_[word] != 0)
      last = word * 64 + 63 - static_cast<size_t>(std::countl_zero(full_[word]));
  if (last == kBins) return kNoId;
  Id best = bins_[last];
  Id range = best;
  for (size_t i = 0; i < kLook && range != kNoId; ++i, range = ranges_[range].b)
    if (ranges_[range].pages > ranges_[best].pages) best = range;
  return best;
}

// The rest keeps its id, and mostly its bin.
Id Allocator::cut(Id range, uint64_t pages, Id owner) {
  const uint32_t want = static_cast<uint32_t>(pages);
  if (ranges_[range].pages > want) {
    const Id front = ranges_.take();
    Range& r = ranges_[front];
    Range& rest = ranges_[range];
    const bool moves = !sealed_ || bin_of(rest.pages) != bin_of(rest.pages - want);
    if (moves) erase_free(range);
    r.first = rest.first;
    r.pages = want & 0x7fffffff;
    r.before = rest.before;
    r.after = range;
    (rest.before == kNoId ? head_ : ranges_[rest.before].after) = front;
    rest.before = front;
    rest.first += want;
    rest.pages = (rest.pages - want) & 0x7fffffff;
    if (moves) insert_free(range);
    range = front;
  } else {
    erase_free(range);
  }
  Range& r = ranges_[range];
  r.taken = 1;
  r.a = owner;
  r.b = kNoId;
  used_ += pages * page_;
  ++taken_;
  return range;
}

Result<> Allocator::wall(uint64_t offset, uint64_t bytes) {
  MC_TRY(const Id range, reserve(offset, bytes, kNoId));
  const uint64_t taken = this->bytes(range);
  capacity_ -= taken;
  used_ -= taken;
  --taken_;
  return {};
}

Id Allocator::allocate(uint64_t bytes, Id owner, size_t pieces) {
  seal();
  const uint64_t want = rounded(bytes);
  if (want > capacity_ - used_) return kNoId;
  uint64_t left = want / page_;
  if (const Id whole = find(left); whole != kNoId) return cut(whole, left, owner);
  Id head = kNoId, last = kNoId;
  for (size_t i = 0; i < pieces && left > 0; ++i) {
    Id range = find(left);
    if (range == kNoId) range = largest();
    const uint64_t pages = std::min<uint64_t>(left, ranges_[range].pages);
    const Id piece = cut(range, pages, owner);
    (head == kNoId ? head : ranges_[last].b) = piece;
    last = piece;
    left -= pages;
  }
  if (left == 0) return head;
  free(head);
  return kNoId;
}

Result<Id> Allocator::reserve(uint64_t offset, uint64_t bytes, Id owner) {
  const uint64_t want = rounded(bytes);
  const auto text = [&](const char* why) {
    return fail(Code::kInvalid, "range %llu+%llu: %s", static_cast<unsigned long long>(offset),
                static_cast<unsigned long long>(bytes), why);
  };
  if (offset % page_ != 0 || offset > span_ || want > span_ - offset)
    return text("not in whole pages of this segment");
  if (sealed_) return text("ranges are reserved before any is allocated");
  const auto first = static_cast<uint32_t>(offset / page_);
  const uint64_t pages = want / page_;
  auto it = by_place_.upper_bound(first);
  if (it == by_place_.begin()) it = by_place_.end();
  if (it != by_place_.begin()) --it;
  if (by_place_.empty() || it->first > first ||
      uint64_t{it->first} + ranges_[it->second].pages < first + pages)
    return fail(Code::kExists, "range %llu+%llu: overlaps one that is taken",
                static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes));
  Id range = it->second;
  if (ranges_[range].first < first) {  // its front stays free
    const Id front = cut(range, first - ranges_[range].first, kNoId);
    range = ranges_[front].after;
    ranges_[front].taken = 0;
    used_ -= this->bytes(front);
    --taken_;
    insert_free(front);
  }
  return cut(range, pages, owner);
}

void Allocator::seal() {
  if (std::exchange(sealed_, true)) return;
  by_place_.clear();
}

void Allocator::set_owner(Id head, Id owner) {
  for (Id range = head; range != kNoId; range = ranges_[range].b) ranges_[range].a = owner;
}

void Allocator::free(Id head) {
  while (head != kNoId) {
    const Id next = ranges_[head].b;
    free_one(head);
    head = next;
  }
}

void Allocator::free_one(Id range) {
  MC_CHECK(ranges_[range].taken == 1);
  used_ -= bytes(range);
  --taken_;
  const auto swallow = [&](Id left, Id right) {  // requires: neither is in a bin
    Range& l = ranges_[left];
    const Range& r = ranges_[right];
    l.pages = (l.pages + r.pages) & 0x7fffffff;
    l.after = r.after;
    if (r.after != kNoId) ranges_[r.after].before = left;
    ranges_.give(right);
  };
  if (const Id after = ranges_[range].after; after != kNoId && !taken(after)) {
    erase_free(after);
    swallow(range, after);
  }
  if (const Id before = ranges_[range].before; before != kNoId && !taken(before)) {
    erase_free(before);
    swallow(before, range);
    range = before;
  }
  insert_free(range);
}

uint64_t Allocator::largest_free() const {
  const Id range = largest();
  return range == kNoId ? 0 : bytes(range);
}

double Allocator::fragmentation() const {
  const uint64_t left = capacity_ - used_;
  if (left == 0) return 0;
  return 1.0 - static_cast<double>(largest_free()) / static_cast<double>(left);
}

}  // namespace mc::store
