// The order in which objects are evicted: least recently used first, counted in bytes. Only
// objects that may go now are in the list (complete and not leased), so a victim is found in O(1)
// and nothing ever scans the table.
//
// Thread: one owner. Pure.
// Source: design, "Eviction"; LRU as in the paper's section 4.2 ("KVCache pool with LRU").
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>

namespace mc::store {

// What the object carries for it.
struct Evictable {
  std::list<Evictable*>::iterator evict_at;
  bool in_lru = false;
};

class Lru {
 public:
  void touch(Evictable& object);  // it is the most recently used one; adds it
  void drop(Evictable& object);
  Evictable* victim() const { return list_.empty() ? nullptr : list_.front(); }
  size_t size() const { return list_.size(); }

 private:
  std::list<Evictable*> list_;  // the least recently used first
};

// How many bytes must go, working ahead: nothing while `used` is within high_watermark of
// `capacity`; then as many as bring it eviction_ratio below.
uint64_t bytes_to_evict(uint64_t used, uint64_t capacity, double high_watermark,
                        double eviction_ratio);

}  // namespace mc::store
