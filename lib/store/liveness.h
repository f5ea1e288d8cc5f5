// Which nodes are alive: one not heard of for `suspect_after` is suspect (it is given nothing new
// and read last), for `ttl` it is gone. A watcher that itself stood still heard nobody meanwhile:
// when two of its turns lie further apart than `stall`, everybody gets a fresh lease of life.
//
// Thread: one owner. Pure: time is an argument.
// Source: design, "Liveness".
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "base/units.h"

namespace mc::store {

struct LivenessOptions {
  Duration ttl = std::chrono::seconds(10);
  Duration suspect_after = std::chrono::seconds(3);
};

class Liveness {
 public:
  explicit Liveness(LivenessOptions options) : options_(options) {}

  void heard(const NodeId& node, Time now);
  void suspect(const NodeId& node);  // somebody could not reach it; until it is heard again
  void forget(const NodeId& node) { nodes_.erase(node); }
  bool is_suspect(const NodeId& node, Time now) const;
  Duration silence(const NodeId& node, Time now) const;  // since it was last heard

  // The nodes that are gone; they are forgotten. Call it at deadline(), or sooner.
  std::vector<NodeId> tick(Time now);
  Time deadline() const;  // Time::max() when there is nobody to watch
  uint64_t stalls() const { return stalls_; }

 private:
  struct Seen {
    Time at;
    bool suspected = false;
  };
  Duration period() const { return options_.ttl / 8; }

  const LivenessOptions options_;
  std::unordered_map<NodeId, Seen> nodes_;
  Time last_tick_ = Time::min();
  uint64_t stalls_ = 0;
};

}  // namespace mc::store
