// Checks of replicas that nodes were ordered to make, because a reader got other bytes than were
// put.
//
// Any client may report a replica, so reports cost nodes little: a replica is checked once at a
// time and once a second, and a node hashes for a tenth of its time at most, after a burst of one
// second. What is reported beyond that is ignored: the next reader reports it again.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <map>
#include <optional>
#include <utility>

#include "base/time.h"
#include "store/metadata/object.h"

namespace mc::store {

struct ReplicaCheck {
  uint16_t tenant = 0;
  ObjectKey key;
  uint64_t mount = 0;  // of the node
  Generation generation;
};

class ReplicaChecks {
 public:
  static constexpr size_t kMost = 4096;
  // Numbers of checks differ from those of other tasks.
  static bool is_check(uint64_t task) { return task >> 63 != 0; }

  // `paid`: of the node, when it has time for checks again. Returns: 0 if there is nothing to
  // order.
  uint64_t begin(ReplicaCheck check, uint64_t bytes, Time& paid, Time now);
  // The node answered; nullopt: it was not asked.
  std::optional<ReplicaCheck> end(uint64_t task, uint64_t mount, Time now);
  size_t size() const { return checks_.size(); }

 private:
  struct Entry {
    ReplicaCheck check;
    bool open = true;
    Time until;  // then it is forgotten
  };
  using Key = std::pair<uint64_t, Generation>;  // mount and generation
  void expire(Time now);
  std::map<uint64_t, Entry> checks_;  // by number, so by age
  std::map<Key, uint64_t> by_replica_;
  uint64_t next_ = 1;
};

}  // namespace mc::store
