// Decides when a restarted master knows all nodes again. Until then a key it does not know is
// unknown, not absent: it may be on a node that has not reported yet.
//
// Each node reports how many nodes its last master had. Once that many are back the pool is whole.
// Before the first report the master waits for `grace`. It gives up a known node that stays away
// after `limit`.
//
// Thread: one owner. Pure: time is an argument.
#pragma once
#include <algorithm>
#include <set>
#include <string>

#include "base/time.h"
#include "base/units.h"

namespace mc::store {

class Rebuild {
 public:
  // `grace` 0: unknown keys are absent from the start.
  Rebuild(Duration grace, Duration limit, Time started)
      : grace_(grace), limit_(limit), started_(started) {}

  void expect(uint64_t nodes);        // an earlier master had so many
  void reported(const NodeId& node);  // its inventory is complete
  bool over(Time now) const { return now >= end(); }
  Time end() const;  // as known now; earlier once the nodes are back
  uint64_t missing() const { return expected_ - std::min<uint64_t>(expected_, reported_.size()); }
  uint64_t expected() const { return expected_; }
  std::string why(Time now) const;  // for people; empty when over

 private:
  const Duration grace_, limit_;
  const Time started_;
  uint64_t expected_ = 0;
  std::set<NodeId> reported_;
};

}  // namespace mc::store
