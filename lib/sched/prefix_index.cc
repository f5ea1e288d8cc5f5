#include "sched/prefix_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <utility>

#include "base/random.h"

namespace mc::sched {
namespace {
constexpr size_t kAhead = 12;         // blocks read ahead at most, where a prompt is not in runs
constexpr size_t kNewAhead = 24;      // behind a block that is new, as the next ones are
constexpr int kStream = 48;           // cells read ahead in a run: more than the CPU does by itself
constexpr uint32_t kSets = 4;         // cells between the prefetch of a set and its use
constexpr size_t kMovedATick = 2048;  // buckets of a table that grows: 0.3 ms
}  // namespace

PrefixIndex::PrefixIndex(size_t entries_max) : entries_max_(std::min(entries_max, size_t{kNone})) {}

// Finds blocks one after another. The neighbour of the one before is tried first, and nothing is
// read ahead while that is right. Each time it is wrong more is read ahead, up to kAhead: the
// bucket of a block, and halfway to it the cell. Behind a block that was added the next ones have
// no cells yet either.
class PrefixIndex::Search {
 public:
  Search(const PrefixIndex& index, std::span<const uint64_t> tags, At last = kNone)
      : index_(index), tags_(tags), at_(last) {
    if (last < index.cells_.size()) stand_at(last);
  }

  // The place of tags[i]; kNone: it is not there. To be asked for each i in order.
  At find(size_t i) {
    const uint64_t tag = tags_[i];
    if (ahead_ > 0) read_ahead(i);
    if (cell_ != nullptr && cell_ + 1 < end_ && cell_[1].tag == tag && cell_[1].count > 0) {
      if (ahead_ > 0) --ahead_;
      ++cell_;
      return ++at_;
    }
    ahead_ = std::min(2 * ahead_ + 2, kAhead);
    const At at =
        index_.cells_.is(at_ - 1, tag) ? at_ - 1 : index_.buckets_.find(index_.cells_, tag);
    if (at != kNone) {
      stand_at(at);
      new_ = false;
    }
    return at;
  }
  // The block asked for last was not there, and has this place now.
  void added(At at) {
    stand_at(at);
    new_ = true;
  }
  // How many blocks from tags[i] on are the next neighbours, with the same holders as the block
  // found last. The search stands at the last of them.
  size_t same_from(size_t i) {
    const Cell* c = cell_;
    const Cell* const end =
        c + std::min<ptrdiff_t>(end_ - c, static_cast<ptrdiff_t>(tags_.size() - i + 1));
    const uint64_t* tag = tags_.data() + i;
    const uint64_t holders = c->all_holders();
    while (++c < end && c->tag == *tag && c->all_holders() == holders) {
      __builtin_prefetch(c + kStream);
      ++tag;
    }
    const auto n = static_cast<size_t>(c - 1 - cell_);
    cell_ += n;
    at_ += static_cast<At>(n);
    return n;
  }
  void stand_at(At at) {
    at_ = at;
    cell_ = &index_.cells_[at];
    end_ = index_.cells_.end_of_run(at);
  }
  At last() const { return at_; }

 private:
  void read_ahead(size_t i) {
    const size_t buckets = std::min(i + (new_ ? kNewAhead : ahead_) + 1, tags_.size());
    for (bucket_ = std::max(bucket_, i + 1); bucket_ < buckets; ++bucket_)
      index_.buckets_.prefetch(tags_[bucket_]);
    if (new_) return;
    const size_t cells = std::min(i + ahead_ / 2 + 1, tags_.size());
    for (next_ = std::max(next_, i + 1); next_ < cells; ++next_)
      if (const At at = index_.buckets_.likely(tags_[next_]); at != kNone)
        __builtin_prefetch(&index_.cells_[at]);
  }

  const PrefixIndex& index_;
  std::span<const uint64_t> tags_;
  At at_;
  const Cell *cell_ = nullptr, *end_ = nullptr;  // at_ and the end of its run
  size_t ahead_ = 0, bucket_ = 0, next_ = 0;     // blocks; the first whose bucket, cell is not read
  bool new_ = false;                             // the block before was added
};

PrefixIndex::At PrefixIndex::place(uint64_t tag, At near) {
  if (used_ >= entries_max_) {
    ++refused_;
    return kNone;
  }
  ++used_;
  const At at = cells_.take(tag, near);
  buckets_.insert(cells_, at);
  return at;
}

void PrefixIndex::erase(At at) {
  --used_;
  buckets_.erase(cells_[at].tag, at);
  cells_.free(at);
}

size_t PrefixIndex::bytes() const { return cells_.bytes() + buckets_.bytes() + aside_.bytes(); }

void PrefixIndex::hold(Cell& c, Slot value) {
  if (c.count == Cell::kAside) return aside_[c.set()].hold(value);
  for (Slot& h : std::span(c.holders, c.count)) {
    if ((h & ~kGuessed) != (value & ~kGuessed)) continue;
    h &= value;  // a report confirms a guess; a guess takes nothing from a report
    return;
  }
  if (c.count < kInline) {
    c.holders[c.count++] = value;
    return;
  }
  const uint32_t at = aside_.take();
  aside_[at].assign({c.holders, c.count});
  aside_[at].hold(value);
  c.holders[0] = static_cast<Slot>(at);
  c.holders[1] = static_cast<Slot>(at >> 16);
  c.count = Cell::kAside;
}

bool PrefixIndex::drop(Cell& c, Slot slot, bool guesses_only) {
  if (c.count == Cell::kAside) {
    const uint32_t at = c.set();
    HolderSet& set = aside_[at];
    if (!set.drop(slot, guesses_only) || set.size() > kInline) return false;
    std::copy(set.list().begin(), set.list().end(), c.holders);
    c.count = static_cast<uint16_t>(set.size());
    aside_.free(at);
    return false;
  }
  const auto all = std::span(c.holders, c.count);
  const auto it =
      std::find_if(all.begin(), all.end(), [&](Slot h) { return (h & ~kGuessed) == slot; });
  if (it == all.end() || (guesses_only && (*it & kGuessed) == 0)) return false;
  *it = all.back();
  return --c.count == 0;
}

void PrefixIndex::add(Slot slot, std::span<const uint64_t> tags) {
  retired_.used(slot);
  hold_all(tags, slot);
}

void PrefixIndex::hold_all(std::span<const uint64_t> tags, Slot value) {
  Search search(*this, tags, last_);
  for (size_t i = 0; i < tags.size(); ++i) {
    At at = search.find(i);
    if (at == kNone) {
      at = place(tags[i], search.last());
      if (at == kNone) continue;
      search.added(at);
    }
    hold(cells_[at], value);
  }
  last_ = search.last();
}

void PrefixIndex::remove(Slot slot, std::span<const uint64_t> tags) { drop_all(tags, slot, false); }

void PrefixIndex::drop_all(std::span<const uint64_t> tags, Slot slot, bool guesses_only) {
  Search search(*this, tags);
  for (size_t i = 0; i < tags.size(); ++i) {
    const size_t later = i + kAhead;  // a block that nobody holds any more leaves its bucket
    if (later < tags.size()) buckets_.prefetch(tags[later]);
    const At at = search.find(i);
    if (at != kNone && drop(cells_[at], slot, guesses_only)) erase(at);
  }
}

bool PrefixIndex::retire(Slot slot) {
  std::erase_if(guesses_, [&](const auto& g) { return g.second.slot == slot; });
  drop_stale_ends();
  return retired_.retire(slot);
}

std::vector<PrefixIndex::Slot> PrefixIndex::sweep(size_t cells) {
  if (!retired_.any()) return {};
  std::array<Slot, HolderSet::kListMax> some;
  const auto none_left = [&](Cell& c) {  // but for nodes that are gone
    std::span<const Slot> gone = retired_.all();
    if (c.count != Cell::kAside || !aside_[c.set()].wide()) {
      size_t n = 0;
      for (const Slot h : c.count == Cell::kAside ? aside_[c.set()].list()
                                                  : std::span<const Slot>(c.holders, c.count))
        if (const auto slot = static_cast<Slot>(h & ~kGuessed); retired_.has(slot))
          some[n++] = slot;
      gone = std::span(some).first(n);
    }
    return std::any_of(gone.begin(), gone.end(), [&](Slot slot) { return drop(c, slot, false); });
  };
  for (; cells > 0 && retired_.at < cells_.size(); --cells, ++retired_.at) {
    const auto at = static_cast<At>(retired_.at);
    if (cells_[at].count > 0 && none_left(cells_[at])) erase(at);
  }
  return retired_.at < cells_.size() ? std::vector<Slot>{} : retired_.end_pass();
}

PrefixIndex::Guess PrefixIndex::guess(Slot slot, std::span<const uint64_t> tags, Time until) {
  retired_.used(slot);
  hold_all(tags, slot | kGuessed);
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
  drop_all(it->second.tags, it->second.slot, true);
  guesses_.erase(it);
  drop_stale_ends();
}

void PrefixIndex::tick(Time now) {
  buckets_.grow_ahead(cells_, kMovedATick);
  while (!ends_.empty() && ends_.top().first <= now) withdraw(ends_.top().second);
}

Time PrefixIndex::deadline() const { return ends_.empty() ? Time::max() : ends_.top().first; }

// The nodes that match the prompt so far. At first they may be all: a bitmap, reduced by the
// bitmaps of blocks that many hold. From the first block that few hold it is a list.
class PrefixIndex::Walk {
 public:
  Walk(const PrefixIndex& index, size_t slots) : index_(index) { out_.slots = slots; }

  void past(At at) {
    const Cell& c = index_.cells_[at];
    if (c.count != Cell::kAside) {
      last_ = nullptr;
      return past({c.holders, c.count});
    }
    prefetch_sets(at);
    const HolderSet& set = index_.aside_[c.set()];
    if (last_ != nullptr && *last_ == set)
      past_same();
    else if (set.wide())
      past(set);
    else
      past(set.list());
    last_ = &set;
  }

  // Blocks with the same holders as the one before.
  void past_same(size_t blocks = 1) {
    at_ += static_cast<uint32_t>(blocks);
    if (!few_) out_.levels.back().length = at_;
  }

  bool goes_on() const { return any_; }
  Matches end() && {
    for (size_t i = 0; i < left_; ++i) out_.few[i].second = at_;
    return std::move(out_);
  }

 private:
  void past(const HolderSet& wide) {
    ++at_;
    if (few_) return keep([&](Slot slot) { return wide.holds(slot); });
    auto& levels = out_.levels;
    const size_t words = (out_.slots + 63) / 64;
    const auto both = [&](size_t k) {
      return wide.word(k) & (levels.empty() ? live(k) : levels.back().bits[k]);
    };
    size_t nodes = 0;
    for (size_t k = 0; k < words; ++k) nodes += static_cast<size_t>(std::popcount(both(k)));
    any_ = nodes > 0;
    if (!levels.empty() && nodes == levels.back().nodes) {
      levels.back().length = at_;  // within it, with as many nodes: the same set
    } else if (any_) {
      Matches::Level level{at_, nodes, std::vector<uint64_t>(words)};
      for (size_t k = 0; k < words; ++k) level.bits[k] = both(k);
      levels.push_back(std::move(level));
    }
  }

  void past(std::span<const Slot> holders) {
    ++at_;
    if (few_) {
      if (left_ == 1)  // most often
        return keep([&](Slot slot) {
          return std::any_of(holders.begin(), holders.end(),
                             [slot](Slot h) { return (h & ~kGuessed) == slot; });
        });
      if (!marks_) marks_ = std::make_unique<Marks>();
      for (const Slot h : holders) mark(h) |= bit(h);
      keep([&](Slot slot) { return (mark(slot) & bit(slot)) != 0; });
      for (const Slot h : holders) mark(h) = 0;
      return;
    }
    few_ = true;
    for (const Slot h : holders) {
      const auto slot = static_cast<Slot>(h & ~kGuessed);
      if (slot < out_.slots && !index_.retired_.has(slot) &&
          (out_.levels.empty() || out_.levels.back().has(slot)))
        out_.few.emplace_back(slot, at_);
    }
    left_ = out_.few.size();
    any_ = left_ > 0;
  }

  // What the next blocks keep aside is a chain of reads that miss the caches.
  void prefetch_sets(At at) const {
    const auto set = [&](At of) -> const HolderSet* {
      const IndexCells& cells = index_.cells_;
      const bool any = of < cells.size() && cells[of].count == Cell::kAside;
      return any ? &index_.aside_[cells[of].set()] : nullptr;
    };
    __builtin_prefetch(set(at + 2 * kSets));
    if (const HolderSet* const s = set(at + kSets)) s->prefetch();
  }

  uint64_t& mark(Slot h) { return (*marks_)[(h & ~kGuessed) / 64]; }
  static uint64_t bit(Slot h) { return uint64_t{1} << h % 64; }
  // Nodes that still match stand before those that do not.
  template <class Holds>
  void keep(Holds holds) {
    for (size_t i = 0; i < left_;) {
      if (holds(out_.few[i].first)) {
        ++i;
        continue;
      }
      out_.few[i].second = at_ - 1;
      std::swap(out_.few[i], out_.few[--left_]);
    }
    any_ = left_ > 0;
  }

  uint64_t live(size_t k) const { return out_.all(k) & ~index_.retired_.word(k); }

  const PrefixIndex& index_;
  const HolderSet* last_ = nullptr;  // of the last block, if aside
  uint32_t at_ = 0;
  bool any_ = false, few_ = false;
  Matches out_;
  size_t left_ = 0;  // of out_.few, still matching: their length is at_
  using Marks = std::array<uint64_t, kGuessed / 64>;
  std::unique_ptr<Marks> marks_;  // the nodes of one list, while it is looked at
};

Matches PrefixIndex::matches(std::span<const uint64_t> tags, size_t slots) const {
  Walk walk(*this, slots);
  Search search(*this, tags);
  for (size_t i = 0; i < tags.size();) {
    const At at = search.find(i++);
    if (at == kNone) break;
    walk.past(at);
    if (!walk.goes_on()) break;
    if (const size_t n = search.same_from(i); n > 0) {  // most blocks of a run
      walk.past_same(n);
      i += n;
    }
  }
  return std::move(walk).end();
}

std::vector<uint32_t> PrefixIndex::match(std::span<const uint64_t> tags, size_t slots) const {
  return matches(tags, slots).lengths();
}

}  // namespace mc::sched
