#include "store/node/directory.h"

#include <algorithm>

#include "store/metadata/tombstones.h"

namespace mc::store {

void Directory::erase(std::map<uint64_t, ObjectRecord>::iterator it) {
  bytes_ -= it->second.bytes;
  records_.erase(it);
}

Result<> Directory::carry_out(const Order& order) {
  const ObjectRecord& r = order.record;
  if (order.kind == static_cast<uint8_t>(OrderKind::kAddTombstone)) {
    add_tombstone(r, order.fence);
    return {};
  }
  bool sane = layout_.holds(r.offset, r.more.empty() ? r.bytes : r.first_bytes);
  for (const Extent& piece : r.more) sane = sane && layout_.holds(piece.offset, piece.bytes);
  if (!sane)
    return fail(Code::kInvalid, "order %llu names %llu+%llu: outside this segment",
                static_cast<unsigned long long>(order.seq),
                static_cast<unsigned long long>(r.offset),
                static_cast<unsigned long long>(r.bytes));
  const auto it = records_.find(r.offset);
  switch (static_cast<OrderKind>(order.kind)) {
    case OrderKind::kRecord:
      if (it != records_.end() && it->second.generation > r.generation) return {};
      if (it != records_.end()) erase(it);
      records_.emplace(r.offset, r);
      bytes_ += r.bytes;
      newest_ = std::max(newest_, r.generation);
      return {};
    case OrderKind::kForget:
      if (it != records_.end() && it->second.generation == r.generation) erase(it);
      newest_ = std::max(newest_, order.fence);
      if (order.removed) add_tombstone(r, order.fence);
      return {};
    case OrderKind::kAddTombstone: return {};
    case OrderKind::kCopy: return {};  // a later order records the copy
    case OrderKind::kCheck: return {};
  }
  return fail(Code::kInvalid, "order %llu of unknown kind %u",
              static_cast<unsigned long long>(order.seq), unsigned{order.kind});
}

void Directory::add_tombstone(const ObjectRecord& record, Generation before) {
  learn_dead(Tombstones::hash_of(in_space(record.tenant, record.key)), before.n);
}

void Directory::learn_dead(uint64_t hash, uint64_t before) {
  newest_ = std::max(newest_, Generation{before});
  dead_.emplace_back(hash, before);
  if (dead_.size() > kDeadMax) dead_.pop_front();
}

void Directory::tell_dead(Inventory& m) const {
  for (const auto& [hash, before] : dead_) {
    m.dead.push_back(hash);
    m.before.push_back(before);
  }
}

std::vector<Extent> Directory::free_ranges() const {
  std::map<uint64_t, uint64_t> taken;  // offset and end, in whole pages
  const auto take = [&](uint64_t offset, uint64_t bytes) {
    const uint64_t pages = std::max<uint64_t>(1, bytes / kPage + (bytes % kPage != 0 ? 1 : 0));
    taken.emplace(offset, offset + pages * kPage);
  };
  for (const auto& [offset, record] : records_) {
    take(offset, record.more.empty() ? record.bytes : record.first_bytes);
    for (const Extent& piece : record.more) take(piece.offset, piece.bytes);
  }
  std::vector<Region> regions{{layout_.data, layout_.capacity, layout_.guards}};
  regions.insert(regions.end(), layout_.more.begin(), layout_.more.end());
  std::vector<Extent> out;
  for (const Region& region : regions) {
    uint64_t at = region.data;
    const auto free_until = [&](uint64_t end) {
      if (end > at) out.push_back({at, end - at, 0});
    };
    for (auto it = taken.lower_bound(at); it != taken.end() && it->first < region.end(); ++it) {
      free_until(it->first);
      at = std::max(at, it->second);
    }
    free_until(region.end());
  }
  return out;
}

std::vector<ObjectRecord> Directory::page(uint64_t after_offset, bool from_start,
                                          size_t limit) const {
  std::vector<ObjectRecord> out;
  auto it = from_start ? records_.begin() : records_.upper_bound(after_offset);
  for (; it != records_.end() && out.size() < limit; ++it) out.push_back(it->second);
  return out;
}

}  // namespace mc::store
