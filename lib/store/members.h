// The nodes of the cluster as the master sees them: who is mounted and alive, where there is room,
// and the ordered channel of orders to each of them (carried by the answers to its heartbeats,
// repeated until acknowledged).
//
// Thread: one owner. Pure: time and randomness are arguments.
// Source: placement: Mitzenmacher, "The power of two choices" (2001); design, "Master".
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "rpc/membership.h"
#include "store/object.h"

namespace mc::store {

class Members {
 public:
  Members(const rpc::MembershipOptions& liveness, uint64_t seed)
      : liveness_(liveness), random_(seed) {}

  Member* find(const NodeId& name);
  Member* find(const NodeId& name, Generation generation);
  Member* find_mount(const NodeId& name, uint64_t mount);
  // Errors: kInvalid for an impossible layout; kBusy when there are too many nodes.
  Result<Member*> add(const Mount& mount, Time now);
  std::unique_ptr<Member> take(const NodeId& name);  // it is gone: nullptr if it was not there
  void heard(const Member& node, Time now);
  const std::map<NodeId, std::unique_ptr<Member>>& all() const { return members_; }
  // A node is known there by its mount: one that mounts anew was restarted.
  rpc::Membership& liveness() { return liveness_; }
  const rpc::Membership& liveness() const { return liveness_; }

  // A range on a healthy node not among `used`: the preferred one, then the emptier of two taken
  // at random, then any.
  std::optional<Replica> place(uint64_t bytes, const std::vector<Replica>& used,
                               const NodeId& prefer, Time now);

  void order(Member& node, OrderKind kind, const Record& record, Generation fence,
             std::function<void(bool, Time)> done);
  // A heartbeat of `node` came: runs the orders it acknowledged, then holds it.
  void beat(Member& node, const Heartbeat& heartbeat, Time now, Done<Beat> done);
  void answer_beats(Time now, uint64_t epoch,
                    uint64_t nodes);  // those with orders, and those held long enough

  uint64_t capacity() const { return capacity_; }  // of ready nodes
  uint64_t largest() const;                        // segment of a ready node
  uint64_t used() const;                           // taken, less what is being released
  uint64_t releasing(Time now) const;              // by healthy nodes
  void ready(Member& node);
  Time deadline() const;

 private:
  std::map<NodeId, std::unique_ptr<Member>> members_;
  std::vector<Member*> ready_;
  uint64_t capacity_ = 0, mounts_ = 0;
  rpc::Membership liveness_;
  Random random_;
};

}  // namespace mc::store
