// Pure: SIEVE decides which cache entry to evict next. Entries stand in order of arrival with a
// visited bit each. A hand walks from the oldest to the newest, clears set bits, and evicts the
// first entry whose bit is clear. New entries never move, so a single scan does not evict what is
// used again.
//
// Thread: one at a time. Keys are hashable and unique.
// Source: Zhang et al., "SIEVE is simpler than LRU", NSDI 2024.
#pragma once
#include <cstddef>
#include <list>
#include <optional>
#include <unordered_map>

namespace mc {

template <class Key>
class Sieve {
 public:
  void insert(const Key& key) {
    order_.push_front({key, false});
    at_.emplace(key, order_.begin());
  }
  void visit(const Key& key) {
    if (auto it = at_.find(key); it != at_.end()) it->second->visited = true;
  }
  void erase(const Key& key) {
    auto it = at_.find(key);
    if (it == at_.end()) return;
    if (hand_ == it->second) hand_ = towards_newest(hand_);
    order_.erase(it->second);
    at_.erase(it);
  }
  // Erases and returns the next victim; nothing when `may_go` refuses every entry. A refused entry
  // keeps its position.
  template <class MayGo>
  std::optional<Key> evict(MayGo&& may_go) {
    for (size_t steps = 2 * order_.size(); steps > 0; --steps) {
      if (hand_ == order_.end()) hand_ = std::prev(order_.end());
      const auto here = hand_;
      if (here->visited) {
        here->visited = false;
      } else if (may_go(here->key)) {
        const Key key = here->key;
        erase(key);
        return key;
      }
      hand_ = towards_newest(here);
    }
    return std::nullopt;
  }
  size_t size() const { return order_.size(); }
  bool contains(const Key& key) const { return at_.contains(key); }

 private:
  struct Entry {
    Key key;
    bool visited;
  };
  using Order = std::list<Entry>;  // newest first
  // Towards the newest; past it, end(): the hand starts again at the oldest.
  typename Order::iterator towards_newest(typename Order::iterator it) {
    return it == order_.begin() ? order_.end() : std::prev(it);
  }
  Order order_;
  typename Order::iterator hand_ = order_.end();
  std::unordered_map<Key, typename Order::iterator> at_;
};

}  // namespace mc
