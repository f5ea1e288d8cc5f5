// Nodes that the clients of this process did not reach lately. The master may well hear them: a
// firewall or a broken NIC can lie between. Puts ask the master for other nodes, and reads take
// other replicas first. A node is tried again after 2 s; each further failure doubles that, up to a
// minute.
//
// Thread: any.
#pragma once
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/time.h"
#include "store/protocol/messages.h"

namespace mc::store {

class UnreachedNodes {
 public:
  void failed(const NodeId& node, Time now);
  std::vector<NodeId> now(Time now) const;  // kAvoidMax at most
  bool has(const NodeId& node, Time now) const;

 private:
  static constexpr Duration kFirst = std::chrono::seconds(2), kLongest = std::chrono::seconds(60);
  struct Entry {
    Time until;
    Duration pause;
    bool over(Time now) const { return now >= until; }
    // One that fails soon after its pause fails again.
    bool forgotten(Time now) const { return now >= until + 2 * pause; }
  };
  mutable Mutex mutex_;
  std::map<NodeId, Entry> nodes_ MC_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};  // most clients never have one
};

}  // namespace mc::store
