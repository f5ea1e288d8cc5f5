// Chooses the node for a new replica. A new node is accepted only with a probability that grows
// over `slow_start`; otherwise, being empty, it would get every put. Replicas of one object go to
// different nodes, and to different failure domains if there is a choice.
//
// Thread: one owner. Pure: time and randomness are arguments.
// Source: Mitzenmacher, "The power of two choices in randomized load balancing" (2001); design,
// "Master".
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "store/metadata/object.h"

namespace mc::store {

enum class Strategy : uint8_t { kFreeRatio, kRandom, kLocalFirst };
Result<Strategy> parse_strategy(const std::string& text);

struct PlacementRequest {
  NodeId prefer;     // while it has space; several, separated by commas, in this order
  std::string host;  // then nodes of this host, when local
  bool local = false;
  // Nodes that the writer does not reach. They get a first replica only where no other has room,
  // and no further ones.
  std::span<const NodeId> avoid{};
};

struct PlacementOptions {
  Strategy strategy = Strategy::kFreeRatio;
  Duration slow_start = std::chrono::seconds(30);
};

// Progress of a node's slow start, 0 to 1.
double ramp(const Member& node, Duration slow_start, Time now);

// Calls `attempt` with one node of `ready` after the other, best first, until it returns true: the
// preferred node, those of the host, two or more by the strategy, then all. It skips nodes that
// hold one of `used`; nodes of their domains come last.
bool place_by(const PlacementOptions& options, const std::vector<Member*>& ready,
              std::span<const Replica> used, const PlacementRequest& request, Time now,
              Random& random, const std::function<bool(Member&)>& attempt);

}  // namespace mc::store
