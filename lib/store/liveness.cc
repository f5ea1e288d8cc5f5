#include "store/liveness.h"

#include <algorithm>

namespace mc::store {

void Liveness::heard(const NodeId& node, Time now) {
  if (nodes_.empty()) last_tick_ = now;  // watching starts
  nodes_[node] = {now, false};
}

void Liveness::suspect(const NodeId& node) {
  if (const auto it = nodes_.find(node); it != nodes_.end()) it->second.suspected = true;
}

bool Liveness::is_suspect(const NodeId& node, Time now) const {
  const auto it = nodes_.find(node);
  return it == nodes_.end() || it->second.suspected || now - it->second.at > options_.suspect_after;
}

Duration Liveness::silence(const NodeId& node, Time now) const {
  const auto it = nodes_.find(node);
  return it == nodes_.end() ? Duration::max() : now - it->second.at;
}

std::vector<NodeId> Liveness::tick(Time now) {
  std::vector<NodeId> gone;
  if (nodes_.empty()) return gone;
  if (now - last_tick_ > 3 * period()) {  // we stood still, not they
    ++stalls_;
    for (auto& [name, seen] : nodes_) seen.at = std::max(seen.at, now);
  }
  last_tick_ = now;
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    if (now - it->second.at >= options_.ttl) {
      gone.push_back(it->first);
      it = nodes_.erase(it);
    } else {
      ++it;
    }
  }
  std::sort(gone.begin(), gone.end());  // the same order on every machine
  return gone;
}

Time Liveness::deadline() const { return nodes_.empty() ? Time::max() : last_tick_ + period(); }

}  // namespace mc::store
