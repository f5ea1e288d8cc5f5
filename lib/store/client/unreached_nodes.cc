#include "store/client/unreached_nodes.h"

#include <algorithm>

namespace mc::store {

void UnreachedNodes::failed(const NodeId& node, Time now) {
  const Lock lock(mutex_);
  std::erase_if(nodes_, [&](const auto& known) { return known.second.forgotten(now); });
  any_ = true;
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) {
    if (nodes_.size() < kAvoidMax) nodes_.emplace(node, Entry{now + kFirst, kFirst});
    return;
  }
  Entry& entry = it->second;
  if (!entry.over(now)) return;
  entry.pause = std::min<Duration>(2 * entry.pause, kLongest);
  entry.until = now + entry.pause;
}

std::vector<NodeId> UnreachedNodes::now(Time now) const {
  std::vector<NodeId> out;
  if (!any_) return out;
  const Lock lock(mutex_);
  for (const auto& [node, entry] : nodes_)
    if (!entry.over(now)) out.push_back(node);
  return out;
}

bool UnreachedNodes::has(const NodeId& node, Time now) const {
  if (!any_) return false;
  const Lock lock(mutex_);
  const auto it = nodes_.find(node);
  return it != nodes_.end() && !it->second.over(now);
}

}  // namespace mc::store
