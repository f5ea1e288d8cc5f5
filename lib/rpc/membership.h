// Who is alive: a node that heartbeats is a member; one silent for `suspect_after` is suspect, for
// `ttl` dead and forgotten; one that comes back with a larger epoch was restarted, and what it held
// is gone. A watcher that itself stood still heard nobody meanwhile: however long it did not tick,
// that counts as one period (an eighth of the ttl) against a node, so a suspended process does not
// wake up to kill its whole cluster, and one that is starved for ever still finds out who died.
//
//   MC_TRY_(members.heard(beat.node, beat.epoch, now));
//   for (const auto& change : members.tick(now)) ...   // at members.deadline(), or sooner
//
// Thread: one owner. Pure: time is an argument. Errors of heard(): kStale from a process that was
// replaced; kBusy when there are `nodes_max` members.
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
  void accuse(const NodeId& node, Time now);  // somebody could not reach it: suspect until heard
  void forget(const NodeId& node) { nodes_.erase(node); }  // it said goodbye

  // What happened since the last call, in order. Tick at deadline() or sooner: a gap of more than
  // half of the ttl is taken for a stall.
  std::vector<Change> tick(Time now);
  Time deadline() const;  // Time::max() when there is nobody to watch

  bool alive(const NodeId& node) const { return nodes_.contains(node); }
  bool suspect(const NodeId& node, Time now) const;      // true for a stranger
  Duration silence(const NodeId& node, Time now) const;  // less stalls; Duration::max(): a stranger
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
