// Tables, time, leases and eviction queues of Master; the other master_*.cc build on them.
#include "store/master/master.h"

#include <algorithm>
#include <utility>

namespace mc::store {
std::string in_tenant(uint16_t tenant, std::string_view name) {
  return std::string{static_cast<char>(tenant & 0xff), static_cast<char>(tenant >> 8)}.append(name);
}

void MasterOptions::describe(OptionList& v) {
  v("lease-ttl", lease_ttl, "how long a read keeps its object in place");
  v("client-ttl", client_ttl, "a node silent for this long is gone, with what it holds");
  v("suspect-after", suspect_after, "a node silent for this long is given nothing new");
  v("put-discard", put_discard, "a put not finished by then is discarded");
  v("put-wait", put_wait, "how long a put waits for room in a full pool");
  v("rebuild-wait", rebuild_wait,
    "how long after its start a key not known may yet be reported by a node; 0: not at all");
  v("high-watermark", high_watermark, "fill fraction of the pool that starts eviction");
  v("eviction-ratio", eviction_ratio, "fraction of the pool that one eviction frees");
  v("offload", offload,
    "what is written to the nodes' disks: only what has the class context, "
    "what is evicted too, or all at once",
    {"never", "context", "on-evict", "eager"});
  v("on-slow-offload", on_slow_offload, "what is evicted while the disks are behind",
    {"drop", "wait"});
  v("offload-queue", offload_queue, "how far a node's disk may be behind");
  v("evict", evict, "the order of eviction", {"lru", "sieve"});
  v("placement", placement, "where puts go that name no node",
    {"free-ratio", "random", "local-first"});
  v("slow-start", slow_start, "how long a new node is given less than its share of puts");
  v("ephemeral", ephemeral, "puts of the class ephemeral: refused, or kept while there is room",
    {"exclude", "if-free"});
  v("tenant-quotas", tenant_quotas, "bytes of the pool a tenant may take: NAME=SIZE,...");
  v("tenant-disk-quotas", tenant_disk_quotas,
    "bytes of values a tenant may have on the nodes' disks: NAME=SIZE,...");
  v("pin-share", pin_share,
    "fraction of the pool that hard pins and living contexts may take, of all tenants");
  v("tenant-pin-share", tenant_pin_share, "and of one tenant");
  v("hot-replicas", hot_replicas, "memory replicas an object that is read much may have; 1: off");
  v("hot-rate", hot_rate, "reads a second that earn an object another replica");
  v("hot-window", hot_window, "over which reads are counted");
  v("drain-parallel", drain_parallel, "objects moved at a time off a node that drains");
  v("tombstones", tombstones,
    "removals remembered for nodes that are away; one away for longer loses what is older");
  v("event-log", event_log, "events kept for replay and for mc-store why");
}

Result<> MasterOptions::check() const {
  if (!(high_watermark > 0 && high_watermark <= 1))
    return fail(Code::kInvalid, "high-watermark %s: want a fraction in (0, 1]",
                number_text(high_watermark).c_str());
  if (!(eviction_ratio >= 0 && eviction_ratio <= high_watermark))
    return fail(Code::kInvalid, "eviction-ratio %s: want a fraction in [0, high-watermark]",
                number_text(eviction_ratio).c_str());
  for (const auto& [name, period] : {std::pair{"lease-ttl", lease_ttl},
                                     {"client-ttl", client_ttl},
                                     {"suspect-after", suspect_after},
                                     {"put-discard", put_discard},
                                     {"hot-window", hot_window}})
    if (period <= Duration::zero())
      return fail(Code::kInvalid, "%s %s: want more than nothing", name, to_text(period).c_str());
  if (rebuild_wait < Duration::zero())
    return fail(Code::kInvalid, "rebuild-wait %s: want 0 or more", to_text(rebuild_wait).c_str());
  if (evict != "lru" && evict != "sieve")
    return fail(Code::kInvalid, "evict '%s': want lru or sieve", evict.c_str());
  MC_TRY_(parse_strategy(placement));
  if (slow_start < Duration::zero())
    return fail(Code::kInvalid, "slow-start %s: want 0 or more", to_text(slow_start).c_str());
  if (ephemeral != "exclude" && ephemeral != "if-free")
    return fail(Code::kInvalid, "ephemeral '%s': want exclude or if-free", ephemeral.c_str());
  MC_TRY_(Tenants::parse("tenant-quotas", tenant_quotas));
  MC_TRY_(Tenants::parse("tenant-disk-quotas", tenant_disk_quotas));
  for (const auto& [name, share] :
       {std::pair{"pin-share", pin_share}, {"tenant-pin-share", tenant_pin_share}})
    if (!(share >= 0 && share <= 1))
      return fail(Code::kInvalid, "%s %s: want a fraction in [0, 1]", name,
                  number_text(share).c_str());
  if (hot_replicas < 1 || hot_replicas > kReplicasMax)
    return fail(Code::kInvalid, "hot-replicas %u: want 1 to %u", hot_replicas, kReplicasMax);
  if (!(hot_rate > 0))
    return fail(Code::kInvalid, "hot-rate %s: want more than 0", number_text(hot_rate).c_str());
  if (drain_parallel < 1 || drain_parallel > 1024)
    return fail(Code::kInvalid, "drain-parallel %u: want 1 to 1024", drain_parallel);
  if (suspect_after > client_ttl)
    return fail(Code::kInvalid, "suspect-after %s is longer than client-ttl %s",
                to_text(suspect_after).c_str(), to_text(client_ttl).c_str());
  return {};
}

Master::Master(const MasterOptions& options, uint64_t epoch, uint64_t seed, Time started)
    : options_(options),
      started_(started),
      started_s_(epoch),
      epoch_(epoch),
      tenants_(table_.slab(), options.evict == "sieve" ? EvictPolicy::kSieve : EvictPolicy::kLru,
               Tenants::parse("", options.tenant_quotas).value_or(Tenants::Quotas()),
               Tenants::parse("", options.tenant_disk_quotas).value_or(Tenants::Quotas()),
               {options.pin_share, options.tenant_pin_share}),
      members_(
          {options.client_ttl, options.suspect_after},
          {parse_strategy(options.placement).value_or(Strategy::kFreeRatio), options.slow_start},
          seed,
          [this](Member& node, PendingOrder& pending, bool ok, Time now) {
            order_done(node, pending, ok, now);
          }),
      rebuild_(options.rebuild_wait, options.client_ttl, started),
      leases_(table_.slab(), options.lease_ttl),
      events_(options.event_log),
      grants_(table_.slab(), options.put_discard),
      tier_(options.offload_queue.n),
      tombstones_(options.tombstones),
      due_(table_.slab(), [this](Object& object, Time now) { offload_early(object, now); }) {
  tier_.on_offloaded([this](const std::string& name, Generation generation, bool stored, Time now) {
    offloaded(name, generation, stored, now);
  });
  tier_.on_brought([this](const NodeId& node, const std::string& name, Code code, Time now) {
    brought(node, name, code, now);
  });
  tier_.on_loss(
      [this](const NodeId& node, const std::string& name) {
        for (Leaving& l : leaving_)
          if (l.may_return && l.node->ref.name == node) l.held.push_back(Tombstones::hash_of(name));
      },
      [this](const std::string& name, const DiskObjects::OnDisk& disk, Time when, bool with_node) {
        note_disk(name, disk, when, with_node ? kLostWithNode : "its disk has given it up");
        if (!with_node) return;
        const auto [tenant, key] = parts_of(name);
        if (Object* object = find_complete(tenants_.find(tenant), key))
          offload_early(*object, when, true);
      });
}

Generation Master::next_generation() {
  if (++counter_ > UINT32_MAX) {
    ++epoch_;
    counter_ = 1;
  }
  return Generation{epoch_ << 32 | counter_};
}

uint64_t Master::wall_ms(Time now) const {
  return started_s_ * 1000 + static_cast<uint64_t>(std::max(0.0, to_ms(now - started_)));
}

uint64_t Master::memory() const {
  constexpr uint64_t kNode = 48;  // of a std::map or std::set, about
  return table_.memory() + members_.memory() + extras_.size() * (sizeof(Extras) + kNode) +
         recording_.bytes() + keeps_.size() * kNode + tombstones_.memory() +
         tier_.objects().memory();
}

uint64_t Master::quarantined_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [until, quarantined] : quarantined_) bytes += quarantined.record.bytes;
  return bytes;
}

// Drops replicas on lost nodes first.
Object* Master::find(uint16_t tenant, std::string_view key) {
  Object* object = table_.find(tenant, key);
  return object != nullptr && drop_gone_replicas(*object) ? object : nullptr;
}

Object* Master::find_complete(uint16_t tenant, const ObjectKey& key) {
  Object* object = find(tenant, key);
  return object != nullptr && object->state == ObjectState::kComplete ? object : nullptr;
}

size_t Master::replica_count(const Object& object) const {
  const size_t first = object.node != nullptr ? 1 : 0;
  return object.more_replicas ? first + extras_.at(object.self).replicas.size() : first;
}

void Master::add_replica(Object& object, const Replica& replica) {
  replica.node->space.set_owner(replica.range, object.self);
  tenants_[object.tenant].used += replica.node->space.rounded(object.bytes);
  count_pinned(object, false);
  if (object.node == nullptr) {
    object.node = replica.node;
    object.range = replica.range;
    object.generation = replica.generation;
  } else {
    object.extras = object.more_replicas = true;
    extras_[object.self].replicas.push_back(replica);
  }
  count_pinned(object, true);
}

Replica Master::take_replica(Object& object, const Member& node) {
  Replica out;
  count_pinned(object, false);
  if (object.node == &node) {
    out = {object.node, object.range, object.generation};
    object.node = nullptr;
    object.range = kNoId;
    if (object.more_replicas) {
      auto& more = extras_.at(object.self).replicas;
      object.node = more.front().node;
      object.range = more.front().range;
      object.generation = more.front().generation;
      more.erase(more.begin());
      object.more_replicas = !more.empty();
    }
  } else if (object.more_replicas) {
    auto& more = extras_.at(object.self).replicas;
    const auto it =
        std::find_if(more.begin(), more.end(), [&](const Replica& r) { return r.node == &node; });
    if (it != more.end()) {
      out = *it;
      more.erase(it);
      object.more_replicas = !more.empty();
    }
  }
  count_pinned(object, true);
  if (out.node != nullptr) tenants_[object.tenant].used -= node.space.rounded(object.bytes);
  return out;
}

// Replaces the earlier settings. Requires: the object is in no queue.
void Master::set_config(Object& object, ObjectClass cls, Pin pin, Time keep_until,
                        const std::string& group) {
  soft_pinned_ -= object.pin == Pin::kSoft ? 1 : 0;
  soft_pinned_ += pin == Pin::kSoft ? 1 : 0;
  count_pinned(object, false);
  object.cls = cls;
  object.pin = pin;
  if (object.extras) keeps_.erase({extras_.at(object.self).keep_until, object.self});
  if (keep_until != Time::max() || !group.empty() || object.extras) {
    object.extras = true;
    Extras& extras = extras_[object.self];
    extras.keep_until = keep_until;
    if (keep_until != Time::max()) keeps_.emplace(keep_until, object.self);
    if (!group.empty() && extras.group == nullptr) extras.group = tenants_.join(object, group);
  }
  count_pinned(object, true);
}

ObjectRecord Master::record_of(const Object& object, const Replica& replica) const {
  ObjectRecord record;
  record_of(object, replica, record);
  return record;
}

void Master::record_of(const Object& object, const Replica& replica, ObjectRecord& record) const {
  record.key = object.key();
  record.bytes = object.bytes;
  record.checksum = object.state == ObjectState::kWriting ? 0 : object.checksum;
  record.generation = replica.generation;
  if (object.tenant != 0) record.tenant = tenants_[object.tenant].name;
  record.cls = static_cast<uint8_t>(object.cls);
  record.pin = static_cast<uint8_t>(object.pin);
  if (object.extras) {
    const Extras& extras = extras_.at(object.self);
    if (extras.group != nullptr) record.group = extras.group->name;
    if (extras.keep_until != Time::max())
      record.keep_until_s = wall_ms(extras.keep_until) / 1000 + 1;
  }
  bool first = true;
  each_piece(replica, object.bytes, [&](const Extent& piece) {
    if (!std::exchange(first, false)) return record.more.push_back(piece);
    record.offset = piece.offset;
    record.first_bytes = piece.bytes;
  });
  if (record.more.empty()) record.first_bytes = 0;
}

void Master::enqueue(Object& object) {
  if (object.state != ObjectState::kComplete || object.queued) return;
  if (EvictQueue* queue = tenants_.queue_of(object)) queue->insert(object);
}

void Master::dequeue(Object& object) {
  if (!object.queued) return;
  tenants_.queue_of(object)->drop(object);
}

void Master::grant(Object& object, Time now) {
  const auto one = [&](Object& o) {
    leases_.grant(o, now);
    if (o.queued) tenants_.queue_of(o)->use(o);
  };
  one(object);
  for (const Id id : together_with(object))
    if (Object& o = table_[id]; o.state == ObjectState::kComplete) one(o);
}

Group* Master::group_of(const Object& object) const {
  return object.extras ? extras_.at(object.self).group : nullptr;
}

// All objects of its group; empty if it has none.
std::span<const Id> Master::together_with(const Object& object) const {
  const Group* const group = group_of(object);
  if (group == nullptr) return {};
  return group->members;
}

// See Tenants::count().
void Master::count_pinned(const Object& object, bool in) {
  if (!object.extras && !Tenants::stays(object.cls, object.pin)) return;
  const size_t copies = replica_count(object);
  const uint64_t bytes = copies == 0 ? 0 : copies * object.node->space.rounded(object.bytes);
  tenants_.count(object, group_of(object), bytes, in);
}

Order* Master::forget(const Replica& replica, RemovalRef removal) {
  if (replica.node->gone) {
    replica.node->space.set_owner(replica.range, kNoId);
    if (removal) removal->decided();
    return nullptr;
  }
  members_.releasing(*replica.node, replica.range);
  const bool removed = removal != nullptr;
  PendingOrder about;
  about.range = replica.range;
  about.removal = std::move(removal);
  Order& order =
      members_.order(*replica.node, OrderKind::kForget, next_generation(), std::move(about));
  order.removed = removed;
  return &order;
}

void Master::forget(const Replica& replica, ObjectRecord record, bool abandoned) {
  Order* const told = forget(replica, RemovalRef{});
  if (told == nullptr) return;
  told->record = std::move(record);
  told->abandoned = abandoned;
}

void Master::release(Object& object, const RemovalRef& removal) {
  if (removal) removal->expect(replica_count(object));
  while (object.node != nullptr) {
    const Replica r{object.node, object.range, object.generation};
    take_replica(object, *r.node);
    if (Order* told = forget(r, removal)) record_of(object, r, told->record);
  }
  erase(object);
}

void Master::erase(Object& object) {
  if (object.state == ObjectState::kWriting) grants_.end(object);
  if (object.state == ObjectState::kComplete) {
    dequeue(object);
    object_bytes_ -= object.bytes;
    --tenants_[object.tenant].objects;
  } else if (object.promoted) {
    ++totals_.promotions_failed;
  }
  leases_.drop(object);
  due_.set(object, false);
  if (!evicting_.victims.empty()) evicting_.end(disk_name(object.tenant, object.key()));
  if (object.extras) {
    const auto it = extras_.find(object.self);
    keeps_.erase({it->second.keep_until, object.self});
    if (Group* const group = it->second.group) {
      count_pinned(object, false);
      tenants_.leave(object, *group);
    }
    extras_.erase(it);
  }
  soft_pinned_ -= object.pin == Pin::kSoft ? 1 : 0;
  if (object.state == ObjectState::kRecording && recording_id(object) != kNoId)
    recording_.give(std::exchange(recording_id(object), kNoId));
  if (newest_ == object.self) newest_ = kNoId;
  table_.erase(object);
}

// The ranges of an abandoned put are quarantined: its writer may still be writing there.
void Master::abandon(Object& object, Time now) {
  ++totals_.puts_discarded;
  while (object.node != nullptr) {
    const Replica r{object.node, object.range, object.generation};
    ObjectRecord record = record_of(object, r);
    take_replica(object, *r.node);
    r.node->space.set_owner(r.range, kNoId);
    quarantined_.emplace(
        now + options_.put_discard,
        QuarantinedRange{r.node->ref.name, r.node->mount, r.range, std::move(record)});
  }
  erase(object);
}

void Master::note(EventKind kind, const Object& object, Time now, const char* reason,
                  EventTier tier) {
  Event& event = events_.add();
  event.kind = static_cast<uint8_t>(kind);
  event.key = object.key();
  event.tenant = tenants_[object.tenant].name;
  event.bytes = object.bytes;
  event.checksum = object.checksum;
  event.reason = reason;
  event.at_ms = wall_ms(now);
  event.tier = static_cast<uint8_t>(kind == EventKind::kRemoved ? EventTier::kUntold : tier);
  event.nodes.clear();
  const auto add = [&event](const NodeId& node) {
    if (!event.nodes.empty()) event.nodes += ',';
    event.nodes += node;
  };
  if (event.tier != static_cast<uint8_t>(EventTier::kDisk))
    each_replica(object, [&](const Replica& r) { add(r.node->ref.name); });
  else if (const auto disk = tier_.objects().find(disk_name(object.tenant, object.key())))
    for (const DiskObjects::Copy& copy : disk->copies) add(tier_.node_of(copy).name);
}

void Master::order_done(Member& node, PendingOrder& pending, bool ok, Time now) {
  if (pending.object != kNoId) recorded(pending, now);
  if (pending.range != kNoId && ok) {
    members_.released(node, pending.range);
    room_changed_ = true;
  }
  if (pending.removal) {
    if (pending.order->kind == static_cast<uint8_t>(OrderKind::kAddTombstone))
      pending.removal->forgot(node.mount);
    pending.removal->decided();
  }
  if (pending.task != 0 && ok) copied(pending.task, now);
}

void Master::expire_leases(Time now) {
  while (Object* object = leases_.expired(now)) {
    enqueue(*object);
    room_changed_ = room_changed_ || !parked_.puts.empty();
  }
}

void Master::expire_grants(Time now) {
  while (Object* object = grants_.expired(now)) abandon(*object, now);
  while (!quarantined_.empty() && quarantined_.begin()->first <= now) {
    QuarantinedRange r = std::move(quarantined_.begin()->second);
    quarantined_.erase(quarantined_.begin());
    ++totals_.quarantine_expired;
    if (Member* node = members_.find_mount(r.node, r.mount))
      forget({node, r.range, {}}, std::move(r.record), true);
  }
}

// A context whose time to live ended becomes an ordinary object; so does one whose pin ended.
void Master::expire_keeps(Time now) {
  while (!keeps_.empty() && keeps_.begin()->first <= now) {
    Object& object = table_[keeps_.begin()->second];
    dequeue(object);
    set_config(object, object.cls == ObjectClass::kContext ? ObjectClass::kNormal : object.cls,
               Pin::kNone, Time::max(), {});
    enqueue(object);
    room_changed_ = room_changed_ || !parked_.puts.empty();
  }
}

uint64_t Master::nodes(Time now) const {
  const uint64_t mounted = members_.all().size();
  return rebuild_.over(now) ? mounted : std::max(mounted, rebuild_.expected());
}

void Master::finish(Time now) {
  expire_leases(now);
  if (room_changed_) retry_puts(now);
  if (!drains_.empty()) drain_all(now);
  make_room(now);
  members_.answer_beats(now, epoch_, nodes(now));
  tier_.answer(now, epoch_, !parked_.puts.empty());
}

void Master::tick(Time now) {
  for (const auto& change : members_.liveness().tick(now)) {
    if (change.kind != rpc::Membership::Change::Kind::kDead) continue;
    ++totals_.nodes_expired;
    drop_node(change.node, now);
  }
  expire_grants(now);
  expire_keeps(now);
  expire_parked(now);
  go_on_listing(now);
  constexpr size_t kAwaitedMax = 1024;  // when listings wait for that
  go_on_leaving(listing_.empty() ? kLeaveMax : kAwaitedMax);
  cool_down(now);
  due_.step(now);
  finish(now);
}

Time Master::deadline() const {
  if (!listing_.empty() || !leaving_.empty() || tier_.objects().first_lost() || ahead_ > 0)
    return started_;
  Time when =
      std::min({members_.deadline(), tier_.deadline(), grants_.deadline(), due_.deadline()});
  if (!quarantined_.empty()) when = std::min(when, quarantined_.begin()->first);
  if (!keeps_.empty()) when = std::min(when, keeps_.begin()->first);
  if (!parked_.puts.empty())
    when = std::min({when, parked_.puts.begin()->first, leases_.next_expiry()});
  if (!parked_.halves.empty()) when = std::min(when, parked_.halves.begin()->first);
  if (!parked_looks_.empty()) when = std::min(when, parked_looks_.begin()->first);
  for (const auto& [node, job] : drains_) when = std::min({when, job.next_scan, job.next_disk});
  if (!heat_.counts.empty() || !heat_.heated.empty())
    when = std::min(when, heat_.since + options_.hot_window);
  return when;
}

}  // namespace mc::store
