// Replicas that readers found corrupt: their nodes check them, and what is corrupt is dropped and,
// if there is another replica, copied anew.
#include "store/master/master.h"

namespace mc::store {

Result<rpc::Empty> Master::handle(const ReportReplica& m, Time now) {
  if (const Object* object = find_complete(tenants_.find(m.tenant), m.key))
    check_replica(*object, m.node, m.generation, now);
  finish(now);
  return rpc::Empty{};
}

// `generation`: of the replica; none: any.
void Master::check_replica(const Object& object, const NodeId& node, Generation generation,
                           Time now) {
  each_replica(object, [&](const Replica& r) {
    if (r.node->gone || r.node->ref.name != node || (generation && r.generation != generation))
      return;
    const uint64_t id =
        checks_.begin({object.tenant, ObjectKey(object.key()), r.node->mount, r.generation},
                      object.bytes, r.node->checks_paid, now);
    if (id == 0) return;
    ++totals_.checks;
    Order& order = members_.order(*r.node, OrderKind::kCheck, {}, {});
    order.task = id;
    record_of(object, r, order.record);
  });
}

Result<rpc::Empty> Master::checked(const TaskDone& m, Time now) {
  const Member* node = members_.find(m.node, m.generation);
  const bool known = node != nullptr && node->mounted_as(m.mount);
  const auto check = known ? checks_.end(m.task, node->mount, now) : std::nullopt;
  if (!check)
    return fail(Code::kStale, "check %llu of node '%s' is not running",
                static_cast<unsigned long long>(m.task), escape(m.node).c_str());
  Object* object = find_complete(check->tenant, check->key);
  Replica bad;
  if (object != nullptr && m.outcome.code == static_cast<uint8_t>(Code::kCorrupt))
    each_replica(*object, [&](const Replica& r) {
      if (r.node == node && r.generation == check->generation) bad = r;
    });
  if (bad.node != nullptr) drop_corrupt(*object, bad, now);
  finish(now);
  return rpc::Empty{};
}

// At once: a lease keeps bytes in place, and these are not those that were put. Readers get kStale
// and ask again.
void Master::drop_corrupt(Object& object, const Replica& bad, Time now) {
  ++totals_.corrupt;
  const bool last = replica_count(object) == 1;
  const bool moved = !last || on_disk(object.tenant, object.key());
  note(moved ? EventKind::kMoved : EventKind::kRemoved, object, now,
       strf("corrupt: node %s has other bytes than were put; %s", bad.node->ref.name.c_str(),
            !last   ? "its replica was dropped"
            : moved ? "a disk has it"
                    : "no other has it")
           .c_str(),
       last ? EventTier::kDisk : EventTier::kMemory);
  if (last) return release(object, {});
  ObjectRecord record = record_of(object, bad);
  take_replica(object, *bad.node);
  forget(bad, std::move(record));
  (void)start_copy(object, {}, nullptr, now);
}

}  // namespace mc::store
