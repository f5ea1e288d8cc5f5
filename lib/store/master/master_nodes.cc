// Nodes: mounts with an inventory, the order channel, and departures.
#include "store/master/master.h"

namespace mc::store {
namespace {
constexpr uint64_t kNodesSeenMax = 4096;
constexpr uint64_t kKeepMaxS = 100ull * 365 * 24 * 3600;
}  // namespace

Result<Mounted> Master::handle(const Mount& m, Time now) {
  MC_TRY_(wire::check_release("node " + escape(m.node.name), m.release, "this master"));
  if (m.epoch_seen > started_s_ + kEpochsAheadMax)
    return fail(Code::kInvalid, "node '%s' saw epoch %llu: this master is at %llu",
                escape(m.node.name).c_str(), static_cast<unsigned long long>(m.epoch_seen),
                static_cast<unsigned long long>(epoch_));
  if (const Member* old = members_.find(m.node.name)) {
    const bool same = old->ref.generation == m.node.generation;
    if (!same && !members_.liveness().suspect(m.node.name, now))
      return fail(Code::kBusy,
                  "node name '%s' is in use by %s, heard just now: choose another --name, or "
                  "retry if that one has ended",
                  escape(m.node.name).c_str(), escape(old->ref.control).c_str());
    drop_node(m.node.name, now);
  }
  constexpr size_t kReturnMax = 1024;  // ranges of a step, as the node waits
  if (leaves(m.node.name)) go_on_leaving(kReturnMax);
  if (leaves(m.node.name))  // its inventory comes after all of that left the tables
    return fail(Code::kBusy, "node %s: what it held before is being given up: retry",
                escape(m.node.name).c_str());
  MC_TRY_(members_.add(m, now));
  if (m.epoch_seen >= epoch_) {
    epoch_ = m.epoch_seen + 1;
    counter_ = 0;
  }
  if (m.nodes_seen > 0) {
    rebuild_.expect(std::min(m.nodes_seen, kNodesSeenMax));
    members_.find(m.node.name)->returns = true;
  }
  finish(now);
  const Generation fence = next_generation();
  members_.find(m.node.name)->mounted_by = fence;
  return Mounted{epoch_, nodes(now), fence, wall_ms(now) / 1000, wire::this_release()};
}

Result<Mounted> Master::handle(const Inventory& m, Time now) {
  Member* node = members_.find(m.node, m.generation);
  if (node == nullptr || !node->mounted_as(m.mount))
    return fail(Code::kStale, "inventory of node '%s': mount it first", escape(m.node).c_str());
  if (node->ready || m.records.size() > kInventoryMax)
    return fail(Code::kInvalid, "inventory of node '%s': %zu records, %s", escape(m.node).c_str(),
                m.records.size(), node->ready ? "after the last" : "too many");
  members_.heard(*node, now);
  for (const ObjectRecord& record : m.records) adopt(*node, record, now);
  for (size_t i = 0; i < std::min({m.dead.size(), m.before.size(), kDeadMax}); ++i)
    if (m.before[i] >> 32 <= epoch_)  // else it would void what is put from now on
      tombstones_.learn(m.dead[i], Generation{m.before[i]});
  // Nobody gets these until the node acknowledges that it forgot them.
  for (size_t i = 0; i < std::min(m.unfenced.size(), kUnfencedMax) && m.last; ++i) {
    ObjectRecord record;
    record.offset = m.unfenced[i].offset;
    record.bytes = m.unfenced[i].bytes;
    const Id range = reserve(*node, record);
    if (range == kNoId) continue;
    ++node->objects;
    forget({node, range, {}}, std::move(record), true);
  }
  if (m.last) {
    members_.ready(*node, now);
    node->tier = m.tier;
    if (!m.tier) tombstones_.node_rejoined(m.node);
    if (node->returns && !m.tier) rebuild_.reported(m.node);
    if (node->objects > 0) events_.joined(m.node, wall_ms(now));
    room_changed_ = true;
  }
  finish(now);
  return Mounted{epoch_, nodes(now)};
}

// Takes the ranges of a record, which is untrusted. Returns: kNoId if they are not free.
Id Master::reserve(Member& node, const ObjectRecord& record) {
  Id head = kNoId, last = kNoId;
  uint64_t left = record.bytes;
  const auto piece = [&](uint64_t offset, uint64_t bytes) {
    const uint64_t data = node.layout.data;
    if (offset < data || bytes > left) return false;
    const auto range = node.space.reserve(offset - data, bytes, kNoId);
    if (!range) return false;
    if (head == kNoId)
      head = *range;
    else
      node.space.chain(last, *range);
    last = *range;
    left -= bytes;
    return true;
  };
  bool sane = record.more.size() < kExtentsMax &&
              piece(record.offset, record.more.empty() ? record.bytes : record.first_bytes);
  for (const Extent& e : record.more) sane = sane && e.bytes > 0 && piece(e.offset, e.bytes);
  if (sane && left == 0) return head;
  if (head != kNoId) node.space.free(head);
  return kNoId;
}

void Master::adopt(Member& node, const ObjectRecord& record, Time now) {
  const auto tenant = tenants_.get(record.tenant);
  const bool sane = check_object_key(record.key) && record.generation && tenant &&
                    record.cls <= static_cast<uint8_t>(ObjectClass::kContext) &&
                    record.pin <= static_cast<uint8_t>(Pin::kHard) &&
                    record.group.size() <= kGroupBytesMax;
  const Id range = sane ? reserve(node, record) : kNoId;
  if (range == kNoId) {
    ++totals_.records_refused;
    members_.order(node, OrderKind::kForget, record.generation, {}).record = record;
    return;
  }
  ++node.objects;
  const Replica replica{&node, range, record.generation};
  if (tombstones_.dead(node.ref.name, disk_name(*tenant, record.key), record.generation) ||
      older_than_disk(record, *tenant))
    return forget(replica, record);
  Object* object = find(*tenant, record.key);
  if (object != nullptr && object->state == ObjectState::kComplete) {
    bool here = false;
    each_replica(*object, [&](const Replica& r) { here = here || r.node == &node; });
    // The same put, or a later copy of it.
    const bool twin = object->bytes == record.bytes && object->checksum == record.checksum &&
                      replica_count(*object) < kReplicasMax && !here;
    if (twin) return add_replica(*object, replica);
    if (object->bytes != record.bytes || object->checksum != record.checksum)
      tombstones_.add(disk_name(*tenant, record.key),
                      std::max(object->generation, record.generation));
    if (object->generation < record.generation) {
      release(*object, {});  // the record is of a later put
      object = nullptr;
    }
  }
  if (object != nullptr) return forget(replica, record);
  object = &table_.insert(*tenant, record.key);
  object->bytes = record.bytes;
  object->checksum = record.checksum;
  add_replica(*object, replica);
  Time keep = Time::max();
  if (record.keep_until_s > 0)
    keep = record.keep_until_s * 1000 <= wall_ms(now)
               ? now
               : now + std::chrono::milliseconds(
                           std::min(record.keep_until_s - wall_ms(now) / 1000, kKeepMaxS) * 1000);
  if (record.cls != 0 || record.pin != 0 || !record.group.empty())
    set_config(*object, static_cast<ObjectClass>(record.cls), static_cast<Pin>(record.pin), keep,
               record.group);
  publish(*object, now, false);
}

Result<Mounted> Master::handle(const Unmount& m, Time now) {
  const bool empty = tier_.empty(m.node) && !m.lasting;
  if (members_.find(m.node, m.generation) != nullptr) drop_node(m.node, now, !empty);
  if (empty) tombstones_.node_rejoined(m.node);
  finish(now);
  return Mounted{epoch_, nodes(now)};
}

void Master::handle(const Heartbeat& m, Time now, Done<HeartbeatReply> done) {
  Member* node = members_.find(m.node, m.generation);
  if (node == nullptr || !node->mounted_as(m.mount))
    return done(HeartbeatReply{epoch_, static_cast<uint8_t>(BeatStatus::kRemount), {}, 0});
  members_.beat(*node, m, now, std::move(done));
  finish(now);
}

Result<rpc::Empty> Master::handle(const ReportNode& m, Time now) {
  if (members_.find(m.node, m.generation) != nullptr) members_.liveness().accuse(m.node, now);
  return rpc::Empty{};
}

// Remembers what a lost node may bring back.
void Master::track_departure(const Member& node, Time now) {
  const NodeId& name = node.ref.name;
  std::vector<uint64_t> held;
  // It may have carried out its unacknowledged orders or not.
  const auto may_be_there = [&](const PendingOrder& pending) {
    const std::string n = in_space(pending.order->record.tenant, pending.order->record.key);
    held.push_back(Tombstones::hash_of(n));
    const bool tombstone = pending.order->kind == static_cast<uint8_t>(OrderKind::kAddTombstone);
    if (tombstone) pending.removal->forgot(node.mount);
    if (pending.order->removed || tombstone) replicate_tombstone(n, pending.order->fence, now);
  };
  for (const PendingOrder& pending : node.orders) may_be_there(pending);
  for (const PendingOrder& pending : node.unfenced) may_be_there(pending);
  for (const auto& [until, quarantined] : quarantined_)
    if (quarantined.node == name)
      held.push_back(
          Tombstones::hash_of(in_space(quarantined.record.tenant, quarantined.record.key)));
  for (const auto& [n, generation] : tier_.forgetting(name))
    replicate_tombstone(n, Generation{generation.n + 1}, now);
  tombstones_.left(name, next_generation(), std::move(held), true);
}

// Its objects leave the table a bounded number at a time, and at once if a call asks for one. So no
// call finds a lost replica, and none waits while a million of them go.
void Master::drop_node(const NodeId& name, Time now, bool may_return) {
  std::unique_ptr<Member> taken = members_.take(name);
  if (taken == nullptr) return;
  Member& node = *taken;
  const Id first = node.space.first();
  leaving_.push_back({std::move(taken), first, next_generation(), now, may_return, {}});
  for (const PendingOrder& pending : node.orders) {  // puts that wait for its acknowledgement
    if (Object* object = recording_of(pending)) drop_gone_replicas(*object);
  }
  for (auto& [id, task] : tasks_.all) {
    if (task.drain == name) task.drain.clear();
    if (task.state == Task::State::kRunning && task.target_mount == node.mount)
      end_task(id, task, {Code::kUnavailable, "its target is gone"});
  }
  drains_.erase(name);
  track_departure(node, now);
  members_.fail_orders(node, now);
  if (const auto beat = std::exchange(node.beat, nullptr))
    beat(HeartbeatReply{epoch_, static_cast<uint8_t>(BeatStatus::kRemount), {}, 0});
  room_changed_ = true;
  tier_.drop(name, now);
  go_on_leaving(kLeaveMax);
}

bool Master::only_gone(const Object& object) const {
  if (leaving_.empty()) return false;
  bool gone = true;
  each_replica(object, [&](const Replica& r) { gone = gone && r.node->gone; });
  return gone;
}

// Drops the object's replicas on lost nodes. Returns: false if none was left and the object is
// erased.
bool Master::drop_gone_replicas(Object& object) {
  for (Leaving& l : leaving_) {
    const Replica lost = take_replica(object, *l.node);
    if (lost.node == nullptr) continue;
    l.node->space.set_owner(lost.range, kNoId);
    if (l.may_return) l.held.push_back(Tombstones::hash_of(disk_name(object.tenant, object.key())));
    if (object.node != nullptr || object.state == ObjectState::kRecording) continue;
    if (object.state == ObjectState::kComplete) {
      const bool disk = on_disk(object.tenant, object.key());
      note(disk ? EventKind::kMoved : EventKind::kRemoved, object, l.when, kLostWithNode,
           EventTier::kDisk);
    }
    erase(object);
    return false;
  }
  return true;
}

bool Master::leaves(const NodeId& name) const {
  return std::any_of(leaving_.begin(), leaving_.end(),
                     [&](const Leaving& l) { return l.node->ref.name == name; });
}

namespace {
// malloc consolidates small free chunks only at a large malloc or free. After millions of keys
// went, one such call would pause for all of them. This does it in small steps.
void join_free_memory() {
  constexpr size_t kLarge = 2048;
  ::operator delete(::operator new(kLarge));  // called by name, so that the compiler keeps the pair
}
}  // namespace

// All calls together cost O(ranges and disk copies of the nodes).
void Master::go_on_leaving(size_t most) {
  while (!leaving_.empty() && most > 0) {
    Leaving& l = leaving_.front();
    Member& node = *l.node;
    for (; l.at != kNoId && most > 0; --most) {
      const Id range = std::exchange(l.at, node.space.after(l.at));
      if (node.space.taken(range) && node.space.owner(range) != kNoId)
        drop_gone_replicas(table_[node.space.owner(range)]);
    }
    if (l.at == kNoId) most = tier_.go_on_dropping(most);
    const bool more = l.at != kNoId || tier_.dropping(node.ref.name);
    if (l.may_return) tombstones_.left(node.ref.name, l.since, std::exchange(l.held, {}), more);
    join_free_memory();
    if (more || !node.space.dismantle()) return;
    leaving_.pop_front();
  }
  tier_.go_on_dropping(most);  // of nodes that list their disks anew
}

}  // namespace mc::store
