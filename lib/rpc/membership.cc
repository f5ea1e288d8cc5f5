#include "rpc/membership.h"

#include <algorithm>
#include <utility>

namespace mc::rpc {

void Membership::note(Change::Kind kind, const NodeId& node, uint64_t epoch, Time now) {
  if (changes_.empty()) changed_ = now;
  changes_.push_back({kind, node, epoch});
}

Result<> Membership::heard(const NodeId& node, uint64_t epoch, Time now) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end()) {
    if (nodes_.size() >= options_.nodes_max)
      return fail(Code::kBusy, "node %s: there are %zu members already", escape(node).c_str(),
                  nodes_.size());
    if (nodes_.empty()) ticked_ = now;  // watching begins
    nodes_[node] = {epoch, now};
    note(Change::Kind::kJoined, node, epoch, now);
    return {};
  }
  Node& known = it->second;
  if (epoch < known.epoch)
    return fail(Code::kStale, "node %s was replaced by a newer process of that name",
                escape(node).c_str());
  if (epoch > known.epoch)
    note(Change::Kind::kRestarted, node, epoch, now);
  else if (known.suspect)
    note(Change::Kind::kRecovered, node, epoch, now);
  known = {epoch, std::max(known.heard, now)};
  return {};
}

void Membership::accuse(const NodeId& node, Time now) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end() || std::exchange(it->second.suspect, true)) return;
  note(Change::Kind::kSuspect, node, it->second.epoch, now);
}

std::vector<Membership::Change> Membership::tick(Time now) {
  if (const Duration missed = stalled(now); missed > Duration::zero()) {  // the watcher stalled
    ++stalls_;
    for (auto& [name, node] : nodes_) node.heard = std::min(now, node.heard + missed);
  }
  ticked_ = now;
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const Duration silence = now - it->second.heard;
    if (silence < options_.ttl) {
      if (silence > options_.suspect_after) accuse(it->first, now);
      ++it;
    } else {
      note(Change::Kind::kDead, it->first, it->second.epoch, now);
      it = nodes_.erase(it);
    }
  }
  return std::exchange(changes_, {});
}

Time Membership::deadline() const {
  if (!changes_.empty()) return changed_;
  return nodes_.empty() ? Time::max() : ticked_ + period();
}

Duration Membership::stalled(Time now) const {
  const Duration gap = now - ticked_;
  return !nodes_.empty() && gap > options_.ttl / 2 ? gap - period() : Duration::zero();
}

Duration Membership::silence(const Node& node, Time now) const {
  return std::max(now - node.heard - stalled(now), Duration::zero());
}

Duration Membership::silence(const NodeId& node, Time now) const {
  const auto it = nodes_.find(node);
  return it == nodes_.end() ? Duration::max() : silence(it->second, now);
}

bool Membership::suspect(const NodeId& node, Time now) const {
  const auto it = nodes_.find(node);
  return it == nodes_.end() || it->second.suspect ||
         silence(it->second, now) > options_.suspect_after;
}

}  // namespace mc::rpc
