// A tournament tree: finds the best of many numbered entries that change often.
//
// Each inner node knows the better of its two halves. Few entries are ever the best, so most
// changes end after a match or two, where the winner is another one both before and after it.
//
// Thread: one owner. Pure. Costs: a change takes the logarithm at most, and no allocation; best()
// nothing; a step of a Cursor the logarithm.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace mc::sched {

// Keys of different entries must differ; the smaller is the better.
template <class Key>
class Tournament {
 public:
  explicit Tournament(size_t entries)
      : leaves_(std::bit_ceil(std::max<size_t>(entries, 1))),
        keys_(entries),
        winners_(2 * leaves_, kNone) {}

  void put(uint32_t i, const Key& key) {
    keys_[i] = key;
    replay(i, i);
  }
  void erase(uint32_t i) { replay(i, kNone); }
  bool has(uint32_t i) const { return winners_[leaves_ + i] != kNone; }
  const Key& key(uint32_t i) const { return keys_[i]; }
  bool empty() const { return winners_[1] == kNone; }
  uint32_t best() const { return winners_[1]; }  // not of an empty one

  // Entries in the order of their keys. Valid until the next change.
  class Cursor {
   public:
    explicit Cursor(const Tournament& of) : of_(of) {
      if (of.empty()) return;
      open_.reserve(2 * static_cast<size_t>(std::bit_width(of.leaves_)));
      push(1);
    }
    std::optional<uint32_t> peek() const {
      return open_.empty() ? std::nullopt : std::optional(of_.winners_[open_.front()]);
    }
    void advance() {
      std::pop_heap(open_.begin(), open_.end(), Worse{of_});
      size_t at = open_.back();
      open_.pop_back();
      const size_t leaf = of_.leaves_ + of_.winners_[at];
      while (at < of_.leaves_) {  // those that lost on the way up are open now
        const auto levels = std::bit_width(leaf) - std::bit_width(at);
        const size_t down = leaf >> (levels - 1);
        push(down ^ 1);
        at = down;
      }
    }

   private:
    struct Worse {
      const Tournament& of;
      bool operator()(size_t a, size_t b) const {
        return of.keys_[of.winners_[b]] < of.keys_[of.winners_[a]];
      }
    };
    void push(size_t at) {
      if (of_.winners_[at] == kNone) return;
      open_.push_back(at);
      std::push_heap(open_.begin(), open_.end(), Worse{of_});
    }
    const Tournament& of_;
    std::vector<size_t> open_;  // subtrees, a heap by their winners
  };

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t better(uint32_t a, uint32_t b) const {
    if (a == kNone || b == kNone) return a == kNone ? b : a;
    return keys_[b] < keys_[a] ? b : a;
  }
  void replay(uint32_t i, uint32_t as) {
    size_t at = leaves_ + i;
    winners_[at] = as;
    while ((at /= 2) >= 1) {
      const uint32_t winner = better(winners_[2 * at], winners_[2 * at + 1]);
      // Another one won and wins: above, nothing changes.
      if (winner == winners_[at] && winner != i) return;
      winners_[at] = winner;
    }
  }

  size_t leaves_;  // a power of two; the leaf of entry i is node leaves_ + i, the root node 1
  std::vector<Key> keys_;
  std::vector<uint32_t> winners_;
};

}  // namespace mc::sched
