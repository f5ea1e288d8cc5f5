// Orders objects for eviction, counted in bytes. The queue runs through links inside the objects,
// so that finding a victim needs no scan of the table. Two policies: LRU moves a used object to the
// back. SIEVE only marks it, and a hand walks from the front and clears marks, so a scan does not
// evict what is used again.
//
// A leased object that the search meets leaves the queue; its owner puts it back when the lease
// ends. So each step is paid for by a use, and finding a victim is amortized O(1).
//
// Thread: one owner. Pure.
// Source: design, "Eviction"; LRU as in the paper's section 4.2 ("KVCache pool with LRU"); Zhang et
// al., "SIEVE is simpler than LRU", NSDI 2024.
#pragma once
#include <cstdint>

#include "store/metadata/table.h"

namespace mc::store {

enum class EvictPolicy : uint8_t { kLru, kSieve };

class EvictQueue {
 public:
  EvictQueue(Slab<Object>& objects, EvictPolicy policy)
      : objects_(objects), list_(objects), policy_(policy) {}

  void insert(Object& object);  // as the newest; it is in no queue
  void use(Object& object);     // in this one
  void drop(Object& object);    // in this one
  // The object to go next, still in the queue; nullptr when there is none. Those for which
  // `leased` holds are dropped.
  template <class Leased>
  Object* victim(const Leased& leased) {
    while (!list_.empty()) {
      if (hand_ == kNoId) hand_ = list_.front();
      Object& object = objects_[hand_];
      if (leased(object)) {
        drop(object);
      } else if (object.visited) {
        object.visited = false;
        hand_ = list_.next(hand_);
      } else {
        return &object;
      }
    }
    return nullptr;
  }
  // Passes over the object that victim() found.
  void skip() { hand_ = list_.next(hand_); }
  size_t size() const { return list_.size(); }

 private:
  Slab<Object>& objects_;
  IdList<Object, &Object::queue> list_;  // the oldest first
  const EvictPolicy policy_;
  Id hand_ = kNoId;  // kNoId: the oldest
};

// How many bytes must go, working ahead: nothing while `used` is within high_watermark of
// `capacity`; then as many as bring it eviction_ratio below.
uint64_t bytes_to_evict(uint64_t used, uint64_t capacity, double high_watermark,
                        double eviction_ratio);

}  // namespace mc::store
