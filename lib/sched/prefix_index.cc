#include "sched/prefix_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/random.h"

namespace mc::sched {
namespace {
constexpr size_t kCapacityMin = 1024;
// The distance in match(), in blocks, from an entry's prefetch to its search, the read of its set,
// and its count.
constexpr size_t kFind = 6, kReach = 9, kAhead = 12;
constexpr size_t kFound = 8;  // more than kAhead - kFind
// Above 85 % linear probing runs long; growing by a quarter from there leaves 68 %.
constexpr bool full(size_t used, size_t capacity) { return used > capacity / 20 * 17; }
}  // namespace

PrefixIndex::PrefixIndex(size_t entries_max) : entries_max_(entries_max), table_(kCapacityMin) {}

// Tags are hash bytes already, but a peer chose them: mixing keeps crafted ones from clustering.
// The high half of a product: homes are in the order of the mixed tags at any capacity.
size_t PrefixIndex::home(uint64_t tag) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<size_t>(static_cast<Wide>(mix64(tag)) * table_.size() >> 64);
}

void PrefixIndex::prefetch(std::span<const uint64_t> tags) const {
  for (const uint64_t tag : tags) __builtin_prefetch(&table_[home(tag)]);
}

size_t PrefixIndex::find(uint64_t tag) const {
  size_t at = home(tag);
  while (table_[at].count > 0 && table_[at].tag != tag) at = after(at);
  return at;
}

PrefixIndex::Entry* PrefixIndex::place(uint64_t tag) {
  size_t at = find(tag);
  if (table_[at].count > 0) return &table_[at];
  if (used_ >= entries_max_) {
    ++refused_;
    return nullptr;
  }
  if (full(used_ + 1, table_.size())) {
    grow();
    at = find(tag);
  }
  ++used_;
  table_[at] = {.tag = tag, .holders = {}, .count = 0};
  return &table_[at];
}

// Old and new table are in the same order, except for entries that wrapped around: both are
// streamed.
void PrefixIndex::grow() {
  Table old(table_.size() / 4 * 5);
  old.swap(table_);
  for (const Entry& e : old)
    if (e.count > 0) table_[find(e.tag)] = e;
  retired_.at = 0;
}

// Closes the gap, so that every entry stays reachable from its home without tombstones.
void PrefixIndex::erase(size_t at) {
  const size_t size = table_.size();
  const auto distance = [size](size_t from, size_t to) { return (to + size - from) % size; };
  --used_;
  table_[at].count = 0;
  for (size_t next = after(at); table_[next].count > 0; next = after(next)) {
    const size_t from = home(table_[next].tag);
    if (distance(from, next) < distance(at, next)) continue;  // it may not move before its home
    table_[at] = table_[next];
    table_[next].count = 0;
    if (at < retired_.at && next >= retired_.at) retired_.at = at;  // it was not looked at
    at = next;
  }
}

size_t PrefixIndex::bytes() const {
  size_t n = table_.capacity() * sizeof(Entry) + aside_.capacity() * sizeof(HolderSet) +
             aside_free_.capacity() * sizeof(uint32_t);
  for (const HolderSet& set : aside_) n += set.heap_bytes();
  return n;
}

void PrefixIndex::hold(Entry& e, Slot value) {
  if (e.count == kAside) return aside_[aside(e)].hold(value);
  for (Slot& h : std::span(e.holders, e.count)) {
    if ((h & ~kGuessed) != (value & ~kGuessed)) continue;
    h &= value;  // a report confirms a guess; a guess takes nothing from a report
    return;
  }
  if (e.count < kInline) {
    e.holders[e.count++] = value;
    return;
  }
  if (aside_free_.empty()) {
    aside_free_.push_back(static_cast<uint32_t>(aside_.size()));
    aside_.emplace_back();
  }
  const uint32_t at = aside_free_.back();
  aside_free_.pop_back();
  aside_[at].assign({e.holders, e.count});
  aside_[at].hold(value);
  e.holders[0] = static_cast<Slot>(at);
  e.holders[1] = static_cast<Slot>(at >> 16);
  e.count = kAside;
}

bool PrefixIndex::drop(Entry& e, Slot slot, bool guesses_only) {
  if (e.count == kAside) {
    const uint32_t at = aside(e);
    HolderSet& set = aside_[at];
    if (!set.drop(slot, guesses_only) || set.size() > kInline) return false;
    std::copy(set.list().begin(), set.list().end(), e.holders);
    e.count = static_cast<uint16_t>(set.size());
    set.clear();
    aside_free_.push_back(at);
    return false;
  }
  const auto all = std::span(e.holders, e.count);
  const auto it =
      std::find_if(all.begin(), all.end(), [&](Slot h) { return (h & ~kGuessed) == slot; });
  if (it == all.end() || (guesses_only && (*it & kGuessed) == 0)) return false;
  *it = all.back();
  return --e.count == 0;
}

void PrefixIndex::add(Slot slot, uint64_t tag) {
  retired_.used(slot);
  if (Entry* e = place(tag)) hold(*e, slot);
}

void PrefixIndex::remove(Slot slot, uint64_t tag) { remove(slot, tag, false); }

void PrefixIndex::remove(Slot slot, uint64_t tag, bool guesses_only) {
  const size_t at = find(tag);
  if (table_[at].count > 0 && drop(table_[at], slot, guesses_only)) erase(at);
}

bool PrefixIndex::retire(Slot slot) {
  std::erase_if(guesses_, [&](const auto& g) { return g.second.slot == slot; });
  drop_stale_ends();
  return retired_.retire(slot);
}

std::vector<PrefixIndex::Slot> PrefixIndex::sweep(size_t entries) {
  if (!retired_.any()) return {};
  std::array<Slot, HolderSet::kListMax> some;
  const auto none_left = [&](Entry& e) {  // but for nodes that are gone
    std::span<const Slot> gone = retired_.all();
    if (e.count != kAside || !aside_[aside(e)].wide()) {
      size_t n = 0;
      for (const Slot h :
           e.count == kAside ? aside_[aside(e)].list() : std::span<const Slot>(e.holders, e.count))
        if (const auto slot = static_cast<Slot>(h & ~kGuessed); retired_.has(slot))
          some[n++] = slot;
      gone = std::span(some).first(n);
    }
    return std::any_of(gone.begin(), gone.end(), [&](Slot slot) { return drop(e, slot, false); });
  };
  for (; entries > 0 && retired_.at < table_.size(); --entries) {
    Entry& e = table_[retired_.at];
    if (e.count > 0 && none_left(e))
      erase(retired_.at);  // another may stand there now
    else
      ++retired_.at;
  }
  return retired_.at < table_.size() ? std::vector<Slot>{} : retired_.end_pass();
}

PrefixIndex::Guess PrefixIndex::guess(Slot slot, std::span<const uint64_t> tags, Time until) {
  prefetch(tags);
  retired_.used(slot);
  for (const uint64_t tag : tags)
    if (Entry* e = place(tag)) hold(*e, slot | kGuessed);
  const Guess id = next_guess_++;
  guesses_[id] = {slot, until, {tags.begin(), tags.end()}};
  end_at(until, id);
  return id;
}

void PrefixIndex::end_at(Time until, Guess guess) {
  constexpr size_t kFew = 1024;
  ends_.emplace(until, guess);
  if (ends_.size() > 2 * guesses_.size() + kFew) {
    decltype(ends_) live;
    for (const auto& [id, g] : guesses_) live.emplace(g.until, id);
    ends_.swap(live);
  }
  drop_stale_ends();
}

bool PrefixIndex::stale(const End& end) const {
  const auto it = guesses_.find(end.second);
  return it == guesses_.end() || it->second.until != end.first;
}

void PrefixIndex::drop_stale_ends() {
  while (!ends_.empty() && stale(ends_.top())) ends_.pop();
}

void PrefixIndex::prolong(Guess guess, Time until) {
  const auto it = guesses_.find(guess);
  if (it == guesses_.end() || until <= it->second.until) return;
  it->second.until = until;
  end_at(until, guess);
}

void PrefixIndex::withdraw(Guess guess) {
  const auto it = guesses_.find(guess);
  if (it == guesses_.end()) return;
  prefetch(it->second.tags);
  for (const uint64_t tag : it->second.tags) remove(it->second.slot, tag, true);
  guesses_.erase(it);
  drop_stale_ends();
}

void PrefixIndex::tick(Time now) {
  while (!ends_.empty() && ends_.top().first <= now) withdraw(ends_.top().second);
}

Time PrefixIndex::deadline() const { return ends_.empty() ? Time::max() : ends_.top().first; }

// The nodes that match the prompt so far. At first they may be all: a bitmap, reduced by the
// bitmaps of blocks that many hold. From the first block that few hold it is a list.
class PrefixIndex::Walk {
 public:
  Walk(size_t slots, const RetiredSlots& retired) : retired_(retired) { out_.slots = slots; }

  void past(const HolderSet& wide) {
    ++at_;
    if (few_) return keep([&](Slot slot) { return wide.holds(slot); });
    auto& levels = out_.levels;
    Matches::Level level{at_, 0, std::vector<uint64_t>((out_.slots + 63) / 64)};
    for (size_t k = 0; k < level.bits.size(); ++k) {
      level.bits[k] = wide.word(k) & (levels.empty() ? live(k) : levels.back().bits[k]);
      level.nodes += static_cast<size_t>(std::popcount(level.bits[k]));
    }
    any_ = level.nodes > 0;
    if (!levels.empty() && level.nodes == levels.back().nodes)
      levels.back().length = at_;  // within it, with as many nodes: the same set
    else if (any_)
      levels.push_back(std::move(level));
  }

  void past(std::span<const Slot> holders) {
    ++at_;
    if (few_) {
      for (const Slot h : holders) mark(h) |= bit(h);
      keep([&](Slot slot) { return (mark(slot) & bit(slot)) != 0; });
      for (const Slot h : holders) mark(h) = 0;
      return;
    }
    few_ = true;
    for (const Slot h : holders) {
      const auto slot = static_cast<Slot>(h & ~kGuessed);
      if (slot < out_.slots && !retired_.has(slot) &&
          (out_.levels.empty() || out_.levels.back().has(slot)))
        out_.few.emplace_back(slot, at_);
    }
    left_ = out_.few.size();
    any_ = left_ > 0;
  }

  bool go_on() { return std::exchange(any_, false); }
  Matches end() && { return std::move(out_); }

 private:
  uint64_t& mark(Slot h) { return marks_[(h & ~kGuessed) / 64]; }
  static uint64_t bit(Slot h) { return uint64_t{1} << h % 64; }
  // Nodes that still match stand before those that do not.
  template <class Holds>
  void keep(Holds holds) {
    for (size_t i = 0; i < left_;) {
      if (holds(out_.few[i].first))
        out_.few[i++].second = at_;
      else
        std::swap(out_.few[i], out_.few[--left_]);
    }
    any_ = left_ > 0;
  }

  uint64_t live(size_t k) const { return out_.all(k) & ~retired_.word(k); }

  const RetiredSlots& retired_;
  uint32_t at_ = 0;
  bool any_ = false, few_ = false;
  Matches out_;
  size_t left_ = 0;                              // of out_.few, still matching
  std::array<uint64_t, kGuessed / 64> marks_{};  // the nodes of one list, while it is looked at
};

// Every block is a chain of reads that miss the caches: entry, set, and what the set points to.
// Four stages keep several blocks on their way, each stage a few blocks before the next.
Matches PrefixIndex::matches(std::span<const uint64_t> tags, size_t slots) const {
  Walk walk(slots, retired_);
  const Entry* found[kFound];
  const size_t n = tags.size();
  for (size_t step = 0; step < n + kAhead; ++step) {
    if (step < n) __builtin_prefetch(&table_[home(tags[step])]);
    if (const size_t i = step - kFind; i < n) {
      const Entry& e = *(found[i % kFound] = &table_[find(tags[i])]);
      if (e.count == kAside) __builtin_prefetch(&aside_[aside(e)]);
    }
    if (const size_t i = step - kReach; i < n && found[i % kFound]->count == kAside)
      aside_[aside(*found[i % kFound])].prefetch();
    const size_t i = step - kAhead;
    if (i >= n) continue;
    const Entry& e = *found[i % kFound];
    if (e.count == 0) break;
    if (e.count != kAside)
      walk.past({e.holders, e.count});
    else if (const HolderSet& set = aside_[aside(e)]; set.wide())
      walk.past(set);
    else
      walk.past(set.list());
    if (!walk.go_on()) break;
  }
  return std::move(walk).end();
}

std::vector<uint32_t> PrefixIndex::match(std::span<const uint64_t> tags, size_t slots) const {
  const Matches found = matches(tags, slots);
  std::vector<uint32_t> lengths(slots);
  for (int at = 0; at < static_cast<int>(found.levels.size()); ++at)
    found.each(at, [&, length = found.level_length(at)](Slot slot) {
      lengths[slot] = length;
      return false;
    });
  for (const auto& [slot, length] : found.few) lengths[slot] = length;
  return lengths;
}

}  // namespace mc::sched
