#include "store/ssd/table.h"

#include <algorithm>
#include <tuple>

#include "base/hash.h"

namespace mc::store::ssd {

Table::Table() : shards_(std::make_unique<std::array<Shard, kShards>>()) {}

Table::Shard& Table::shard(const ObjectKey& key) const { return (*shards_)[xxh3(key) % kShards]; }

void Table::Shard::drop(const EntryPtr& entry) {
  (entry->read ? read : unread).erase(entry->in_order);
  entries.erase(entry->object.key);
}

void Table::left(const EntryPtr& entry) {
  --count_;
  bytes_ -= entry->object.bytes;
}

Table::EntryPtr Table::insert(Stored object, uint64_t at) {
  auto entry = std::make_shared<Entry>();
  entry->object = std::move(object);
  entry->at = at;
  entry->order = ++orders_;
  Shard& s = shard(entry->object.key);
  const Lock lock(s.mutex);
  EntryPtr before;
  if (const auto it = s.entries.find(entry->object.key); it != s.entries.end()) {
    if (it->second->object.generation >= entry->object.generation) return entry;
    before = it->second;
    s.drop(before);
    left(before);
  }
  entry->in_order = s.unread.insert(s.unread.end(), entry.get());
  s.entries[entry->object.key] = entry;
  ++count_;
  bytes_ += entry->object.bytes;
  return before;
}

Result<Stored> Table::find(const ObjectKey& key) const {
  const Shard& s = shard(key);
  const Lock lock(s.mutex);
  const auto it = s.entries.find(key);
  if (it == s.entries.end()) return fail(Code::kNotFound, "no key '%s'", escape(key).c_str());
  return it->second->object;
}

Table::EntryPtr Table::take(const ObjectKey& key, Generation generation) {
  Shard& s = shard(key);
  const Lock lock(s.mutex);
  const auto it = s.entries.find(key);
  if (it == s.entries.end() || it->second->object.generation != generation) return nullptr;
  EntryPtr entry = it->second;
  s.drop(entry);
  left(entry);
  return entry;
}

Table::Entry* Table::Shard::first(Evict policy) const {
  Entry* a = unread.empty() ? nullptr : unread.front();
  Entry* b = read.empty() ? nullptr : read.front();
  if (policy == Evict::kFifo && a != nullptr && b != nullptr) return a->order < b->order ? a : b;
  return a != nullptr ? a : b;
}

Table::EntryPtr Table::take_victim(Evict policy) {
  if (policy == Evict::kNone) return nullptr;
  for (;;) {
    ObjectKey key;
    Generation generation;
    std::tuple<bool, Time, uint64_t> best;
    for (Shard& s : *shards_) {
      const Lock lock(s.mutex);
      const Entry* e = s.first(policy);
      if (e == nullptr) continue;
      const bool fifo = policy == Evict::kFifo;
      const std::tuple<bool, Time, uint64_t> rank{!fifo && e->read, fifo ? Time{} : e->last_read,
                                                  e->order};
      if (!key.empty() && best <= rank) continue;
      best = rank;
      key = e->object.key;
      generation = e->object.generation;
    }
    if (key.empty()) return nullptr;
    if (EntryPtr entry = take(key, generation)) return entry;  // else it was removed meanwhile
  }
}

Table::EntryPtr Table::hold(const Load& load, Time now) {
  Shard& s = shard(load.key);
  const Lock lock(s.mutex);
  const auto it = s.entries.find(load.key);
  if (it == s.entries.end()) return nullptr;
  const EntryPtr entry = it->second;
  if (load.generation && entry->object.generation != load.generation) return nullptr;
  s.read.splice(s.read.end(), entry->read ? s.read : s.unread, entry->in_order);
  entry->read = true;
  entry->last_read = now;
  ++entry->readers;
  return entry;
}

bool Table::retire(const EntryPtr& entry) {
  Shard& s = shard(entry->object.key);
  const Lock lock(s.mutex);
  entry->retired = true;
  return entry->readers == 0;
}

bool Table::release(const EntryPtr& entry) {
  Shard& s = shard(entry->object.key);
  const Lock lock(s.mutex);
  return --entry->readers == 0 && entry->retired;
}

std::vector<Table::EntryPtr> Table::entries() const {
  std::vector<EntryPtr> out;
  out.reserve(count_);
  for (const Shard& s : *shards_) {
    const Lock lock(s.mutex);
    for (const auto& [key, entry] : s.entries) out.push_back(entry);
  }
  return out;
}

std::vector<Stored> Table::objects() const {
  std::vector<Stored> out;
  out.reserve(count_);
  for (const EntryPtr& entry : entries()) out.push_back(entry->object);
  return out;
}

Backend::Eviction take_victims(Table& table, Evict policy, uint64_t used, uint64_t bytes,
                               uint64_t capacity, uint64_t (*span)(const Stored&)) {
  Backend::Eviction eviction;
  auto entries = std::make_shared<std::vector<Table::EntryPtr>>();
  for (uint64_t coming = 0; used + bytes > capacity + coming;) {
    Table::EntryPtr entry = table.take_victim(policy);
    if (entry == nullptr) {
      eviction.enough = false;
      break;
    }
    coming += span(entry->object);
    eviction.objects.push_back(entry->object);
    entries->push_back(std::move(entry));
  }
  eviction.rest = std::move(entries);
  return eviction;
}

void append_older(const std::set<Table::EntryPtr>& left, std::span<const Stored> objects,
                  std::vector<Table::EntryPtr>& out) {
  for (const Table::EntryPtr& entry : left)
    if (std::any_of(objects.begin(), objects.end(), [&](const Stored& o) {
          return o.key == entry->object.key && entry->object.generation <= o.generation;
        }))
      out.push_back(entry);
}

std::vector<Stored> objects_among(const std::set<Table::EntryPtr>& left,
                                  std::span<const Table::EntryPtr> entries) {
  std::vector<Stored> out;
  for (const Table::EntryPtr& entry : entries)
    if (left.contains(entry)) out.push_back(entry->object);
  return out;
}

std::vector<Table::EntryPtr> hold_all(Table& table, std::span<Load> loads, Time now) {
  std::vector<Table::EntryPtr> held(loads.size());
  for (size_t i = 0; i < loads.size(); ++i) {
    Load& l = loads[i];
    held[i] = table.hold(l, now);
    if (held[i] == nullptr)
      l.outcome = fail(Code::kNotFound, "no key '%s' on this disk", escape(l.key).c_str());
    else if (l.into.size() < align_up(held[i]->object.bytes))
      l.outcome = fail(Code::kNoSpace, "value of '%s' has %llu bytes: the buffer has %zu",
                       escape(l.key).c_str(),
                       static_cast<unsigned long long>(held[i]->object.bytes), l.into.size());
    else
      l.outcome = held[i]->object;
  }
  return held;
}

}  // namespace mc::store::ssd
