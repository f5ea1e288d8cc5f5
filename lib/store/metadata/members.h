// Tracks the cluster's nodes: mounts, liveness, free space, and orders. The orders to each node
// form an ordered channel. The answers to its heartbeats carry them, again and again until it
// acknowledges them.
//
// Thread: one owner. Pure: time and randomness are arguments.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/random.h"
#include "rpc/membership.h"
#include "store/metadata/object.h"
#include "store/metadata/placement.h"

namespace mc::store {

class Members {
 public:
  // Called when an order was carried out (true) or its node is gone (false).
  using OrderDone = std::function<void(Member&, PendingOrder&, bool, Time)>;

  Members(const rpc::MembershipOptions& liveness, const PlacementOptions& placement, uint64_t seed,
          OrderDone order_done)
      : liveness_(liveness),
        placement_(placement),
        random_(seed),
        order_done_(std::move(order_done)) {}

  Member* find(const NodeId& name);
  Member* find(const NodeId& name, Generation generation);
  Member* find_mount(const NodeId& name, uint64_t mount);
  // Errors: kInvalid for an impossible layout; kBusy when there are too many nodes.
  Result<Member*> add(const Mount& mount, Time now);
  // Removes the node; nullptr if unknown. Its ranges no longer count; fail_orders() ends its
  // orders.
  std::unique_ptr<Member> take(const NodeId& name);
  void fail_orders(Member& node, Time now);
  void heard(const Member& node, Time now);
  const std::map<NodeId, std::unique_ptr<Member>>& all() const { return members_; }
  // It knows a node by its mount: one that mounts again was restarted.
  rpc::Membership& liveness() { return liveness_; }
  const rpc::Membership& liveness() const { return liveness_; }
  bool healthy(const Member& node, Time now) const {
    return !node.gone && !liveness_.suspect(node.ref.name, now);
  }

  // Allocates on a healthy node not among `used`, in one piece or several, in the order of
  // store/metadata/placement.h. The range has no owner yet.
  std::optional<Replica> place(uint64_t bytes, std::span<const Replica> used,
                               const PlacementRequest& request, Time now);
  void unplace(const Replica& replica);    // no client saw it
  void releasing(Member& node, Id range);  // the node gets an order to forget it
  void released(Member& node, Id range);   // the node forgot it

  // Requires: the caller completes the order, whose record is empty, before answer_beats().
  Order& order(Member& node, OrderKind kind, Generation fence, PendingOrder about);
  // Handles a heartbeat: completes the orders it acknowledges, then holds it.
  void beat(Member& node, const Heartbeat& heartbeat, Time now, Done<HeartbeatReply> done);
  void answer_beats(Time now, uint64_t epoch,
                    uint64_t nodes);  // heartbeats with orders, and those held long enough

  uint64_t capacity() const { return capacity_; }       // of ready nodes that are not draining
  uint64_t largest() const;                             // segment of such a node
  uint64_t used() const { return used_ - releasing_; }  // taken there, minus bytes being released
  uint64_t releasing(Time now) const;                   // by healthy ones
  uint64_t memory() const;                              // of allocators
  void ready(Member& node, Time now);
  void drain(Member& node, bool on);
  Time deadline() const;

 private:
  static bool counts(const Member& node) { return node.ready && !node.draining; }
  void count(Member& node, bool in);
  void expect(Member& node, Id range, bool in);  // its release
  void answer(Member& node, uint64_t epoch, uint64_t nodes);
  std::shared_ptr<Order> fresh_order();
  void keep(std::shared_ptr<Order> order);

  std::map<NodeId, std::unique_ptr<Member>> members_;
  std::vector<Member*> ready_;  // candidates for placement
  uint64_t capacity_ = 0, used_ = 0, releasing_ = 0, mounts_ = 0;
  rpc::Membership liveness_;
  const PlacementOptions placement_;
  Random random_;
  const OrderDone order_done_;
  std::vector<std::shared_ptr<Order>> spare_;      // carried out, kept for their memory
  std::vector<PendingOrder> carried_out_;          // used only within beat()
  std::vector<Member*> untold_;                    // nodes with orders that no answer carried yet
  std::set<std::pair<Time, Member*>> held_beats_;  // by deadline
};

}  // namespace mc::store
