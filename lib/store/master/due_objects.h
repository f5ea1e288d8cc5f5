// Objects that are to be on a disk at once (--offload eager, contexts), and that no disk took: it
// was not listed yet, in trouble or behind. They carry a mark, and nothing else is kept of them.
// When a disk may take them, a walk over the table orders them, a few at a time.
//
// Thread: owned by the master's loop. Pure: time is an argument.
#pragma once
#include <functional>
#include <set>

#include "base/time.h"
#include "store/metadata/object.h"

namespace mc::store {

class DueObjects {
 public:
  // `order` has a disk write the object, and says by set() whether it is still due.
  using OrderIt = std::function<void(Object&, Time now)>;
  DueObjects(Slab<Object>& objects, OrderIt order) : objects_(objects), order_(std::move(order)) {}

  void set(Object& object, bool due);
  // A disk did not take one because it is behind.
  void behind(const NodeId& node) { behind_.insert(node); }
  bool waits_for(const NodeId& node) const { return behind_.contains(node); }
  void open(Time now);    // a disk may take what is due: the walk begins soon
  void failed(Time now);  // a write failed: the walk begins later
  void step(Time now);    // of the walk
  Time deadline() const;  // of the next one
  size_t size() const { return marked_; }

 private:
  Slab<Object>& objects_;
  const OrderIt order_;
  uint64_t marked_ = 0;
  std::set<NodeId> behind_;
  Id at_ = 0;        // the next to be looked at
  size_t left_ = 0;  // of this walk
  Time began_, rested_, next_ = Time::max();
};

}  // namespace mc::store
