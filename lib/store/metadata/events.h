// Keeps the last `limit` object events, numbered without gaps. They serve to publish, to replay to
// a subscriber that missed some, and to explain why a key is gone. A subscriber whose next event is
// no longer kept takes a snapshot (a listing carries the event number it is true at) and continues
// from there. A new epoch starts a new numbering.
//
// Thread: one owner. Pure.
#pragma once
#include <string>
#include <vector>

#include "store/protocol/query_messages.h"

namespace mc::store {

class EventLog {
 public:
  explicit EventLog(size_t limit) : limit_(limit) {}
  // The next event, for the caller to fill in. Its other fields keep an old event's values and
  // memory, so that nothing is allocated.
  Event& add();
  // Adds the event that a node brought objects, which have none of their own.
  void joined(const NodeId& node, uint64_t at_ms);
  uint64_t next() const { return next_; }
  uint64_t first() const { return next_ - log_.size(); }
  // Events from number `from` on, at most `limit`. `gap`: the oldest of them are no longer kept.
  std::vector<Event> since(uint64_t from, size_t limit, bool* gap) const;
  // A key's latest events, the newest first.
  std::vector<Event> about(const std::string& tenant, const std::string& key, size_t limit) const;

 private:
  const Event& at(uint64_t seq) const { return log_[(seq - 1) % limit_]; }

  const size_t limit_;
  std::vector<Event> log_;  // a ring once full
  Event none_;              // if the limit is 0
  uint64_t next_ = 1;
};

}  // namespace mc::store
