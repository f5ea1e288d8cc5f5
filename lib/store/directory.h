// What a node holds: the objects the master told it to record, by where they lie. It is the
// inventory from which a master that starts empty is rebuilt, and it never holds anything that
// was removed or evicted and whose room may have been given away.
//
// Thread: one owner. Pure.
#pragma once
#include <map>
#include <vector>

#include "store/messages.h"

namespace mc::store {

class Directory {
 public:
  explicit Directory(Layout layout) : layout_(layout) {}

  // Orders may come twice (their acknowledgement was lost); the second time changes nothing.
  // Errors: kInvalid for ranges outside the segment, or orders this version does not know.
  Result<> carry_out(const Order& order);
  // The records from the one after `after` on, at most `limit`; by offset.
  std::vector<Record> page(uint64_t after_offset, bool from_start, size_t limit) const;
  size_t objects() const { return records_.size(); }
  uint64_t bytes() const { return bytes_; }
  Generation newest() const { return newest_; }  // of all that was ever recorded

 private:
  bool inside(uint64_t offset, uint64_t bytes) const;
  void erase(std::map<uint64_t, Record>::iterator it);

  const Layout layout_;
  std::map<uint64_t, Record> records_;  // by offset
  uint64_t bytes_ = 0;
  Generation newest_;
};

}  // namespace mc::store
