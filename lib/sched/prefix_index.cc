#include "sched/prefix_index.h"

#include <algorithm>

#include "base/random.h"

namespace mc::sched {
namespace {
constexpr size_t kCapacityMin = 1024;
}

PrefixIndex::PrefixIndex(size_t entries_max) : entries_max_(entries_max), table_(kCapacityMin) {}

// Tags are hash bytes already, but a peer chose them: mixing keeps crafted ones from clustering.
size_t PrefixIndex::home(uint64_t tag) const { return mix64(tag) & (table_.size() - 1); }

size_t PrefixIndex::find(uint64_t tag) const {
  size_t at = home(tag);
  while (table_[at].count > 0 && table_[at].tag != tag) at = (at + 1) & (table_.size() - 1);
  return at;
}

PrefixIndex::Entry* PrefixIndex::place(uint64_t tag) {
  size_t at = find(tag);
  if (table_[at].count > 0) return &table_[at];
  if (used_ >= entries_max_) {
    ++refused_;
    return nullptr;
  }
  if (used_ + 1 > table_.size() / 4 * 3) {
    resize(table_.size() * 2);
    at = find(tag);
  }
  ++used_;
  table_[at] = {.tag = tag, .holders = {}, .count = 0, .more = 0};
  return &table_[at];
}

void PrefixIndex::resize(size_t capacity) {
  std::vector<Entry> old(capacity);
  old.swap(table_);
  for (const Entry& e : old)
    if (e.count > 0) table_[find(e.tag)] = e;
}

// Closes the gap, so that every entry stays reachable from its home without tombstones.
void PrefixIndex::erase(size_t at) {
  const size_t mask = table_.size() - 1;
  --used_;
  table_[at].count = 0;
  for (size_t next = (at + 1) & mask; table_[next].count > 0; next = (next + 1) & mask) {
    const size_t from = home(table_[next].tag);
    if (((next - from) & mask) < ((next - at) & mask)) continue;  // it may not move before its home
    table_[at] = table_[next];
    table_[next].count = 0;
    at = next;
  }
}

std::span<PrefixIndex::Slot> PrefixIndex::holders(Entry& e) {
  if (e.count <= kInline) return {e.holders, e.count};
  return lists_[e.more];
}

std::span<const PrefixIndex::Slot> PrefixIndex::holders(const Entry& e) const {
  if (e.count <= kInline) return {e.holders, e.count};
  return lists_[e.more];
}

void PrefixIndex::hold(Entry& e, Slot value) {
  for (Slot& h : holders(e)) {
    if ((h & ~kGuessed) != (value & ~kGuessed)) continue;
    h &= value;  // a report confirms a guess; a guess takes nothing from a report
    return;
  }
  if (e.count < kInline) {
    e.holders[e.count++] = value;
    return;
  }
  if (e.count == kInline) {
    if (lists_free_.empty()) {
      lists_free_.push_back(static_cast<uint32_t>(lists_.size()));
      lists_.emplace_back();
    }
    e.more = lists_free_.back();
    lists_free_.pop_back();
    lists_[e.more].assign(e.holders, e.holders + kInline);
  }
  lists_[e.more].push_back(value);
  ++e.count;
}

bool PrefixIndex::drop(Entry& e, Slot slot, bool guesses_only) {
  const auto all = holders(e);
  const auto it =
      std::find_if(all.begin(), all.end(), [&](Slot h) { return (h & ~kGuessed) == slot; });
  if (it == all.end() || (guesses_only && (*it & kGuessed) == 0)) return false;
  *it = all.back();
  if (e.count > kInline) {
    auto& list = lists_[e.more];
    list.pop_back();
    if (list.size() == kInline) {
      std::copy(list.begin(), list.end(), e.holders);
      list.clear();
      lists_free_.push_back(e.more);
    }
  }
  return --e.count == 0;
}

void PrefixIndex::add(Slot slot, uint64_t tag) {
  if (Entry* e = place(tag)) hold(*e, slot);
}

void PrefixIndex::remove(Slot slot, uint64_t tag) { remove(slot, tag, false); }

void PrefixIndex::remove(Slot slot, uint64_t tag, bool guesses_only) {
  const size_t at = find(tag);
  if (table_[at].count > 0 && drop(table_[at], slot, guesses_only)) erase(at);
}

void PrefixIndex::forget(Slot slot) {
  for (auto it = ends_.begin(); it != ends_.end();) {
    const bool mine = guesses_.at(it->second).slot == slot;
    if (mine) guesses_.erase(it->second);
    it = mine ? ends_.erase(it) : std::next(it);
  }
  std::vector<uint64_t> held;
  for (const Entry& e : table_)
    for (const Slot h : holders(e))
      if ((h & ~kGuessed) == slot) held.push_back(e.tag);
  for (const uint64_t tag : held) remove(slot, tag, false);
}

PrefixIndex::Guess PrefixIndex::guess(Slot slot, std::span<const uint64_t> tags, Time until) {
  for (const uint64_t tag : tags)
    if (Entry* e = place(tag)) hold(*e, slot | kGuessed);
  const Guess id = next_guess_++;
  guesses_[id] = {slot, until, {tags.begin(), tags.end()}};
  ends_.emplace(until, id);
  return id;
}

void PrefixIndex::prolong(Guess guess, Time until) {
  const auto it = guesses_.find(guess);
  if (it == guesses_.end() || until <= it->second.until) return;
  const auto range = ends_.equal_range(it->second.until);
  for (auto end = range.first; end != range.second; ++end) {
    if (end->second != guess) continue;
    ends_.erase(end);
    break;
  }
  it->second.until = until;
  ends_.emplace(until, guess);
}

void PrefixIndex::withdraw(Guess guess) {
  const auto it = guesses_.find(guess);
  if (it == guesses_.end()) return;
  const auto range = ends_.equal_range(it->second.until);
  for (auto end = range.first; end != range.second; ++end) {
    if (end->second != guess) continue;
    ends_.erase(end);
    break;
  }
  for (const uint64_t tag : it->second.tags) remove(it->second.slot, tag, true);
  guesses_.erase(it);
}

void PrefixIndex::tick(Time now) {
  while (!ends_.empty() && ends_.begin()->first <= now) withdraw(ends_.begin()->second);
}

Time PrefixIndex::deadline() const { return ends_.empty() ? Time::max() : ends_.begin()->first; }

std::vector<uint32_t> PrefixIndex::match(std::span<const uint64_t> tags, size_t slots) const {
  std::vector<uint32_t> length(slots);
  for (uint32_t i = 0; i < tags.size(); ++i) {
    bool any = false;
    const Entry& e = table_[find(tags[i])];
    for (const Slot h : holders(e)) {
      const size_t slot = h & ~size_t{kGuessed};
      if (slot >= slots || length[slot] != i) continue;
      length[slot] = i + 1;
      any = true;
    }
    if (!any) break;
  }
  return length;
}

}  // namespace mc::sched
