// A node's directory: the objects it holds, by offset. A master that starts empty is rebuilt from
// it. It never holds an object that was removed or evicted and whose space may have been reused. It
// keeps a bounded list of removals, from which the next master learns which copies of absent nodes
// are void.
//
// Thread: one owner. Pure.
#pragma once
#include <deque>
#include <map>
#include <vector>

#include "store/protocol/node_messages.h"

namespace mc::store {

class Directory {
 public:
  explicit Directory(Layout layout) : layout_(layout) {}

  // Orders may come twice (their acknowledgement was lost); the second time changes nothing.
  // Errors: kInvalid for ranges outside the segment, or orders this version does not know.
  Result<> carry_out(const Order& order);
  // At most `limit` records after offset `after`, by offset.
  std::vector<ObjectRecord> page(uint64_t after_offset, bool from_start, size_t limit) const;
  // The parts of the segments that hold no object, by offset; `guard` is not set.
  std::vector<Extent> free_ranges() const;
  size_t objects() const { return records_.size(); }
  uint64_t bytes() const { return bytes_; }
  // Adds the last kDeadMax removals to the inventory.
  void tell_dead(Inventory& m) const;
  void learn_dead(uint64_t hash, uint64_t before);
  Generation newest() const { return newest_; }  // ever recorded

 private:
  void erase(std::map<uint64_t, ObjectRecord>::iterator it);

  void add_tombstone(const ObjectRecord& record, Generation before);

  Layout layout_;
  std::deque<std::pair<uint64_t, uint64_t>> dead_;  // hash of the name, generation
  std::map<uint64_t, ObjectRecord> records_;        // by offset
  uint64_t bytes_ = 0;
  Generation newest_;
};

}  // namespace mc::store
