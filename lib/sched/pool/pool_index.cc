#include "sched/pool/pool_index.h"

#include <algorithm>

#include "base/random.h"

namespace mc::sched {
namespace {

constexpr size_t kPartMin = 16;
constexpr size_t kReleasedAtATime = 8;
constexpr size_t kReadAhead = 12;  // blocks, in match()

constexpr bool crowded(size_t used, size_t capacity) { return used > capacity / 20 * 17; }

}  // namespace

size_t PoolMatch::piece_of(uint64_t block) const {
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), block,
                                      [](uint64_t at, const Piece& p) { return at < p.first; });
  return static_cast<size_t>(after - pieces_.begin()) - 1;
}

uint64_t PoolMatch::disks_before(uint64_t block) const {
  const Piece& p = pieces_[piece_of(block)];
  return p.disks + (p.place.tier == PoolTier::kDisk ? block - p.first : 0);
}

PoolRun PoolMatch::run(uint64_t first, uint64_t end) const {
  if (first >= size()) return {};
  const uint64_t last = std::min<uint64_t>(pieces_[piece_of(first)].run_end, end);
  if (last <= first) return {};
  const uint64_t disk = disks_before(last) - disks_before(first);
  return {last - first - disk, disk};
}

// A peer chose the tags: mixing keeps crafted ones from clustering. The low bits choose the part,
// the high ones the place in it.
size_t PoolIndex::home(uint64_t mixed, size_t capacity) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<size_t>(static_cast<Wide>(mixed) * capacity >> 64);
}

// The tag's place, or where it would stand. Requires: a part that is not empty.
size_t PoolIndex::find(const Part& part, uint64_t tag, uint64_t mixed) {
  size_t at = home(mixed, part.slots.size());
  while (part.slots[at] != 0 && (part.slots[at] & ~kPlaceBits) != tag)
    at = at + 1 == part.slots.size() ? 0 : at + 1;
  return at;
}

void PoolIndex::grow(Part& part) {
  std::vector<uint64_t> old(part.slots.empty() ? kPartMin : part.slots.size() / 2 * 3);
  old.swap(part.slots);
  for (const uint64_t slot : old)
    if (slot != 0) {
      const uint64_t tag = slot & ~kPlaceBits;
      part.slots[find(part, tag, mix64(tag))] = slot;
    }
}

// Closes the gap, so that every entry stays reachable from its home without tombstones.
void PoolIndex::erase(Part& part, size_t at) {
  const size_t size = part.slots.size();
  const auto after = [size](size_t i) { return i + 1 == size ? 0 : i + 1; };
  const auto distance = [size](size_t from, size_t to) { return (to + size - from) % size; };
  part.slots[at] = 0;
  --part.used;
  for (size_t next = after(at); part.slots[next] != 0; next = after(next)) {
    const size_t from = home(mix64(part.slots[next] & ~kPlaceBits), size);
    if (distance(from, next) < distance(at, next)) continue;  // it may not move before its home
    part.slots[at] = part.slots[next];
    part.slots[next] = 0;
    at = next;
  }
}

void PoolIndex::put(uint64_t tag, PoolPlace place) {
  tag &= ~kPlaceBits;
  const uint64_t mixed = mix64(tag);
  Part& part = parts_[mixed % kParts];
  if (part.slots.empty()) {
    if (place.tier == PoolTier::kNone) return;
    grow(part);
  }
  size_t at = find(part, tag, mixed);
  if (place.tier == PoolTier::kNone) {
    if (part.slots[at] == 0) return;
    --blocks_;
    return erase(part, at);
  }
  if (part.slots[at] == 0) {
    if (blocks_ >= entries_max_) {
      ++refused_;
      return;
    }
    if (crowded(part.used + 1, part.slots.size())) {
      grow(part);
      at = find(part, tag, mixed);
    }
    ++part.used;
    ++blocks_;
  }
  part.slots[at] = tag | uint64_t{place.node} << kNodeShift | static_cast<uint64_t>(place.tier);
}

PoolPlace PoolIndex::place(uint64_t tag) const {
  tag &= ~kPlaceBits;
  const uint64_t mixed = mix64(tag);
  const Part& part = parts_[mixed % kParts];
  if (part.slots.empty()) return {};
  const uint64_t slot = part.slots[find(part, tag, mixed)];
  return {static_cast<PoolTier>(slot & kTierBits),
          static_cast<uint16_t>((slot & kPlaceBits) >> kNodeShift)};
}

PoolMatch PoolIndex::match(std::span<const uint64_t> tags, size_t held) const {
  PoolMatch m;
  if (blocks_ == 0) return m;
  const auto prefetch = [&](uint64_t tag) {
    const uint64_t mixed = mix64(tag & ~kPlaceBits);
    const Part& part = parts_[mixed % kParts];
    if (!part.slots.empty()) __builtin_prefetch(&part.slots[home(mixed, part.slots.size())]);
  };
  std::vector<PoolMatch::Piece>& pieces = m.pieces_;
  bool any = false;
  for (size_t i = 0; i < tags.size(); ++i) {
    if (i + kReadAhead < tags.size()) prefetch(tags[i + kReadAhead]);
    const PoolPlace at = place(tags[i]);
    if (at.tier == PoolTier::kNone && i >= held) break;
    any = any || at.tier != PoolTier::kNone;
    const auto block = static_cast<uint32_t>(i);
    if (pieces.empty() || pieces.back().place != at)
      pieces.push_back({.first = block, .place = at});
    pieces.back().end = block + 1;
  }
  if (!any) return {};
  for (size_t i = 1; i < pieces.size(); ++i) {
    const PoolMatch::Piece& before = pieces[i - 1];
    const bool disk = before.place.tier == PoolTier::kDisk;
    pieces[i].disks = before.disks + (disk ? before.end - before.first : 0);
  }
  for (size_t i = pieces.size(); i-- > 0;) {
    PoolMatch::Piece& p = pieces[i];
    const bool there = p.place.tier != PoolTier::kNone;
    const bool goes_on = i + 1 < pieces.size() && pieces[i + 1].place.tier != PoolTier::kNone;
    p.run_end = !there ? p.first : goes_on ? pieces[i + 1].run_end : p.end;
  }
  return m;
}

size_t PoolIndex::bytes() const {
  size_t n = sizeof *this;
  for (const Part& part : parts_) n += part.slots.capacity() * sizeof(uint64_t);
  return n;
}

bool PoolIndex::release_some() {
  for (size_t i = 0; i < kReleasedAtATime && released_ < kParts; ++i) {
    Part& part = parts_[released_++];
    blocks_ -= part.used;
    part = {};
  }
  return released_ < kParts;
}

}  // namespace mc::sched
