// Decides from heartbeats which nodes are alive. A node that heartbeats is a member. One that is
// silent for `suspect_after` is suspect; one that is silent for `ttl` is dead and forgotten. A
// larger epoch means that the node restarted and lost what it held.
//
// If the watcher itself did not run, however long, it counts that gap as one period (an eighth of
// the ttl) against each node. So a suspended process does not declare its whole cluster dead when
// it resumes. A watcher that is starved for ever still finds dead nodes.
//
//   MC_TRY_(members.heard(beat.node, beat.epoch, now));
//   for (const auto& change : members.tick(now)) ...   // at members.deadline(), or sooner
//
// Errors: of heard(): kStale from a process that was replaced; kBusy when there are `nodes_max`
// members.
// Thread: one owner.
// Pure: time is an argument.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "base/units.h"

namespace mc::rpc {

struct MembershipOptions {
  Duration ttl = std::chrono::seconds(10);
  Duration suspect_after = std::chrono::seconds(3);
  size_t nodes_max = 4096;
};

class Membership {
 public:
  struct Change {
    enum class Kind : uint8_t { kJoined, kRestarted, kSuspect, kRecovered, kDead };
    Kind kind;
    NodeId node;
    uint64_t epoch;  // the new one of a node that restarted
    friend bool operator==(const Change&, const Change&) = default;
  };

  explicit Membership(MembershipOptions options) : options_(options) {}

  Result<> heard(const NodeId& node, uint64_t epoch, Time now);
  void accuse(const NodeId& node, Time now);  // a peer could not reach it: suspect until heard
  void forget(const NodeId& node) { nodes_.erase(node); }  // it left in order

  // Returns: what happened since the last call, in order. Call it at deadline() or sooner: a gap of
  // more than half of the ttl counts as a stall.
  std::vector<Change> tick(Time now);
  Time deadline() const;  // Time::max() when there is no member

  bool alive(const NodeId& node) const { return nodes_.contains(node); }
  bool suspect(const NodeId& node, Time now) const;  // true for a node that is no member
  // Time since its last heartbeat, without stalls; Duration::max() for a node that is no member.
  Duration silence(const NodeId& node, Time now) const;
  size_t size() const { return nodes_.size(); }
  uint64_t stalls() const { return stalls_; }

 private:
  struct Node {
    uint64_t epoch;
    Time heard;
    bool suspect = false;
  };
  Duration period() const { return options_.ttl / 8; }
  Duration silence(const Node& node, Time now) const;
  Duration stalled(Time now) const;  // since the last tick
  void note(Change::Kind kind, const NodeId& node, uint64_t epoch, Time now);

  const MembershipOptions options_;
  std::map<NodeId, Node> nodes_;  // ordered: the same changes in the same order everywhere
  std::vector<Change> changes_;
  Time changed_{};  // when the first of them was noted
  Time ticked_{};   // last, or when watching began
  uint64_t stalls_ = 0;
};

}  // namespace mc::rpc
