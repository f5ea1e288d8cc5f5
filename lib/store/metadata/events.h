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
  // The next one, to be filled in; all but its number is what an older one left there, so that
  // nothing is allocated for it.
  Event& add();
  uint64_t next() const { return next_; }  // the number of the next one
  uint64_t first() const { return next_ - log_.size(); }
  // Those from number `from` on, at most `limit`; `gap` when older ones were asked for than kept.
  std::vector<Event> since(uint64_t from, size_t limit, bool* gap) const;
  // The latest about a key, the newest first.
  std::vector<Event> about(const std::string& tenant, const std::string& key, size_t limit) const;

 private:
  const Event& at(uint64_t seq) const { return log_[(seq - 1) % limit_]; }

  const size_t limit_;
  std::vector<Event> log_;  // a ring, when it has grown to its limit
  Event none_;              // of a log that keeps nothing
  uint64_t next_ = 1;
};

}  // namespace mc::store
