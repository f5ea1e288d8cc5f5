// What a master that has just started must doubt: a key that it does not know may lie on a node
// that has not reported yet. Until the nodes are back, such a key is not absent but unknown.
//
// How many nodes there were it learns from the nodes themselves: each brings along how many its
// last master had. Once that many are back the pool is whole. While nobody has told, it waits for
// `grace`; a node that was told of and stays away is given up after `limit`.
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
  // No `grace`: a master that never doubts.
  Rebuild(Duration grace, Duration limit, Time started)
      : grace_(grace), limit_(limit), started_(started) {}

  void expect(uint64_t nodes);        // an earlier master had so many
  void reported(const NodeId& node);  // one of them told all it holds
  bool over(Time now) const { return now >= end(); }
  Time end() const;  // as far as is known now: sooner when the nodes are back
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
