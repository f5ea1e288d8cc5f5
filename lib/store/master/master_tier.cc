// The SSD tier: offloads objects to the nodes' disks and locates them there.
#include <algorithm>
#include <tuple>

#include "store/master/master.h"

namespace mc::store {

// Its name on disks: the key, or tenant, NUL, key. Empty: the tenant is unknown.
std::string Master::disk_name(uint16_t tenant, std::string_view key) const {
  if (tenant == 0) return std::string(key);
  if (tenant == Tenants::kNone) return {};
  return tenants_[tenant].name + '\0' + std::string(key);
}

bool Master::on_disk(uint16_t tenant, std::string_view key) const {
  return tier_.any() && tier_.objects().has(disk_name(tenant, key));
}

// Whether a disk that is not draining holds it.
bool Master::stays_on_disk(uint16_t tenant, std::string_view key) const {
  if (!tier_.any()) return false;
  if (drains_.empty()) return on_disk(tenant, key);
  const auto disk = tier_.objects().find(disk_name(tenant, key));
  if (!disk) return false;
  return std::any_of(disk->copies.begin(), disk->copies.end(), [&](const DiskObjects::Copy& c) {
    return !drains_.contains(tier_.node_of(c).name);
  });
}

// ---- tombstones

// Whether a node may return whose objects this master does not know.
bool Master::unknown_nodes_away(Time now) const {
  return rebuild_.missing() > 0 || !rebuild_.over(now);
}

// Whether an absent node may bring an older content of the name.
bool Master::may_come_back(const std::string& name, Time now) const {
  return unknown_nodes_away(now) || tombstones_.held_away(name);
}

// Adds a tombstone here and on two nodes, for the next master: on those that are to remember it
// already, or on others. The removal waits for them. A node that forgets a removed object remembers
// it anyway.
void Master::replicate_tombstone(const std::string& name, Generation before, Time now) {
  constexpr size_t kTold = 2;
  tombstones_.add(name, before);
  ObjectRecord record;
  std::tie(record.tenant, record.key) = parts_of(name);
  size_t told = removals_.remembering(name, before);
  for (const bool healthy : {true, false})  // one that is suspect may be lost in a moment
    for (const auto& [node, member] : members_.all()) {
      if (told >= kTold) return;
      if (!member->ready || members_.healthy(*member, now) != healthy) continue;
      PendingOrder about;
      about.removal = removals_.of(name);
      if (!about.removal->remember(member->mount, before)) continue;
      members_.order(*member, OrderKind::kAddTombstone, before, std::move(about)).record = record;
      ++told;
    }
}

// Adds a tombstone for a removed name that no node's memory holds. It is kept even if no node is
// known to be away, because an earlier master may have given one up. `written`: a put of that name
// under way, if any, which stays.
void Master::add_tombstone(const std::string& name, const Object* written, Time now) {
  const Generation before = written != nullptr ? written->generation : next_generation();
  if (may_come_back(name, now))
    replicate_tombstone(name, before, now);
  else
    tombstones_.add(name, before);
}

// Has the disks forget it, as a part of its removal. `gone`: of DiskReplicaIndex::forget().
// Returns: false if none has it.
bool Master::forget_on_disks(const std::string& name, const DiskReplicaIndex::Gone& gone) {
  const RemovalRef removal = removals_.of(name);
  removal->expect(1);
  const bool there = tier_.forget(name, [removal, gone](const Result<>& of_disks) {
    if (gone) gone(of_disks);
    removal->decided();
  });
  if (!there) removal->decided();
  return there;
}

// Whether a mounting node must forget this object of its disk. Of two contents the later put stays.
bool Master::refused(const NodeId& node, const TierObject& o) {
  if (tombstones_.dead(node, o.name, o.generation)) return true;
  const auto [name, key] = parts_of(o.name);
  const auto tenant = tenants_.get(name);
  Object* const object = tenant ? find_complete(*tenant, key) : nullptr;
  const auto differs = [&](const auto& other) {
    return other.bytes != o.bytes || other.checksum != o.checksum;
  };
  if (object != nullptr && !differs(*object)) return false;
  if (object != nullptr && object->generation >= o.generation) return true;
  // The older of two contents must not return after the newer one is gone.
  const auto disk = tier_.objects().find(o.name);
  if (disk && differs(*disk)) tombstones_.add(o.name, std::max(disk->newest(), o.generation));
  if (object == nullptr) return false;
  tombstones_.add(o.name, o.generation);
  release(*object, {});
  return false;
}

// ---- messages of nodes

Result<TierAck> Master::handle(const TierMount& m, Time now) {
  Member* node = members_.find(m.node, m.generation);
  if (node == nullptr || !node->ready || !node->mounted_as(m.listing.mount))
    return TierAck{epoch_, static_cast<uint8_t>(BeatStatus::kRemount)};
  if (m.objects.size() > kTierPageMax)
    return fail(Code::kInvalid, "tier of node '%s': %zu objects in one page",
                escape(m.node).c_str(), m.objects.size());
  // An earlier master with a faster clock may have written the disk.
  for (const TierObject& o : m.objects)
    if (o.generation.n > (epoch_ << 32 | counter_) &&
        o.generation.n >> 32 < started_s_ + kEpochsAheadMax) {
      epoch_ = (o.generation.n >> 32) + 1;
      counter_ = 0;
    }
  const bool taken = tier_.mount(
      m, node->ref, [&](const TierObject& o) { return refused(m.node, o); }, now);
  if (!taken)
    return fail(Code::kStale, "tier of node '%s': page %llu of listing %llu came late",
                escape(m.node).c_str(), static_cast<unsigned long long>(m.page),
                static_cast<unsigned long long>(m.listing.number));
  if (m.first) node->tier = true;  // it begins anew
  if (!awaited_.empty())
    for (const TierObject& o : m.objects) {
      const auto [tenant, key] = parts_of(o.name);
      const uint16_t id = tenants_.find(tenant);
      if (tier_.objects().has(o.name)) wake_looks(in_tenant(id, key), now);
    }
  if (m.last) {
    node->tier = false;
    tombstones_.node_rejoined(m.node);
    if (node->returns) rebuild_.reported(m.node);
    if (!tier_.empty(m.node)) events_.joined(m.node, wall_ms(now));
    room_changed_ = true;
    due_.open(now);
  }
  finish(now);
  return TierAck{epoch_, 0};
}

void Master::handle(const TierHeartbeat& m, Time now,
                    std::function<void(const Result<TierWork>&)> done) {
  const Member* node = members_.find(m.node, m.generation);
  const bool took = tier_.ask(m.node, 1) != DiskReplicaIndex::Queued::kNo;
  if (node == nullptr || !node->mounted_as(m.listing.mount) || !tier_.beat(m, now, done))
    return done(TierWork{epoch_, static_cast<uint8_t>(BeatStatus::kRemount), {}, false});
  if (!took && m.trouble.empty()) due_.open(now);  // it is well again
  finish(now);
}

Result<TierAck> Master::handle(const TierReport& m, Time now) {
  const Member* node = members_.find(m.node, m.generation);
  if (node == nullptr || !node->mounted_as(m.listing.mount) || !tier_.report(m, now))
    return TierAck{epoch_, static_cast<uint8_t>(BeatStatus::kRemount)};
  for (const TierResult& r : m.results) {  // a value that a disk was to have
    if (r.event != static_cast<uint8_t>(TierEvent::kNotStored) ||
        r.code != static_cast<uint8_t>(Code::kCorrupt))
      continue;
    const auto [tenant, key] = parts_of(r.name);
    if (const Object* object = find_complete(tenants_.find(tenant), key))
      check_replica(*object, m.node, {}, now);
  }
  if (due_.waits_for(m.node) && tier_.ask(m.node, 1) == DiskReplicaIndex::Queued::kYes)
    due_.open(now);
  finish(now);
  return TierAck{epoch_, 0};
}

// If a record in a node's memory differs from a disk copy, the older of the two goes.
bool Master::older_than_disk(const ObjectRecord& record, uint16_t tenant) {
  if (!tier_.any()) return false;
  const std::string name = disk_name(tenant, record.key);
  const auto disk = tier_.objects().find(name);
  if (!disk || (disk->bytes == record.bytes && disk->checksum == record.checksum)) return false;
  tombstones_.add(name, std::max(disk->newest(), record.generation));
  if (disk->newest() > record.generation) return true;
  tier_.forget(name, {});
  return false;
}

// ---- queries

bool Master::locate_on_disk(const std::optional<DiskObjects::OnDisk>& disk, Replicas& reply,
                            std::vector<const Member*>& named, Located& item) {
  if (!disk) return false;
  if (item.places.empty()) {
    item.bytes = disk->bytes;
    item.checksum = disk->checksum;
    item.generation = disk->newest();
  }
  for (const DiskObjects::Copy& copy : disk->copies) {
    const Member* node = members_.find(tier_.node_of(copy).name);
    if (node == nullptr) continue;
    const auto known = std::find(named.begin(), named.end(), node);
    item.disks.push_back(static_cast<uint32_t>(known - named.begin()));
    if (known != named.end()) continue;
    named.push_back(node);
    reply.nodes.push_back(node->ref);
  }
  return true;
}

// Merges objects that only disks hold into the ordered page.
void Master::list_disks(Listed& reply, const List& m, uint16_t tenant, uint32_t limit) const {
  const std::string space = disk_name(tenant, "");
  if (tenant == Tenants::kNone) return;
  size_t gone = SIZE_MAX;  // listings wait until what lost nodes held is given up
  const bool from_prefix = m.after < m.prefix;
  auto disk = tier_.objects().after(space, from_prefix ? m.prefix : m.after, from_prefix, gone);
  const auto next = [&] { disk = tier_.objects().after(space, disk->key, false, gone); };
  std::vector<ObjectInfo> merged;
  auto memory = reply.items.begin();
  const bool more_in_memory = reply.more;
  reply.more = false;
  for (;;) {
    const bool here = memory != reply.items.end();
    const bool there = disk && disk->key.starts_with(m.prefix);
    // The page says nothing of memory objects after its last key.
    if (!here && (!there || more_in_memory)) break;
    if (merged.size() == limit) {
      reply.more = true;
      break;
    }
    const auto copies = there ? static_cast<uint32_t>(disk->object.copies.size()) : 0;
    if (there && (!here || disk->key < memory->key)) {
      const DiskObjects::OnDisk& o = disk->object;
      merged.push_back({disk->key, o.bytes, o.checksum, o.newest(), 0, false, o.cls, 0, copies});
      if (copies == 1) merged.back().node = tier_.node_of(o.copies[0]).name;
      next();
      continue;
    }
    merged.push_back(std::move(*memory));
    ++memory;
    if (!there || disk->key != merged.back().key) continue;
    merged.back().disks = copies;
    next();
  }
  reply.more = reply.more || more_in_memory;
  reply.items = std::move(merged);
}

// Removes a prefix's objects that only disks hold, a bounded number per call.
void Master::remove_disks(RemovePrefixed& reply, const RemovePrefix& m, uint16_t tenant,
                          const DiskReplicaIndex::Gone& gone_from, Time now) {
  constexpr size_t kNamesAtOnce = 256;  // a disk may sync for each
  constexpr size_t kGoneAtOnce = 1024;
  if (tenant == Tenants::kNone) return;
  tier_.go_on_dropping(kGoneAtOnce);  // else the next call steps over the same again
  const std::string space = disk_name(tenant, "");
  size_t gone = kGoneAtOnce;
  std::vector<std::string> keys;
  auto at = tier_.objects().after(space, m.prefix, true, gone);
  for (; at && at->key.starts_with(m.prefix);
       at = tier_.objects().after(space, at->key, false, gone)) {
    if (find_complete(tenant, at->key) != nullptr) continue;
    reply.more = keys.size() == kNamesAtOnce;
    if (reply.more) break;
    keys.push_back(at->key);
  }
  if (gone == 0) reply.more = true;
  for (const std::string& key : keys) {
    ++reply.removed;
    ++totals_.removed;
    if (const auto disk = tier_.objects().find(space + key))
      note_disk(space + key, *disk, now, "removed");
    add_tombstone(space + key, find(tenant, key), now);
    (void)forget_on_disks(space + key, gone_from);
  }
}

// ---- offloading

// Decides about an eviction victim: drop it (it is on a disk, or need not be), or keep it until it
// is written.
Master::Offload Master::offload(Object& object, Time now) {
  if (options_.offload == "never" || (!tier_.any() && options_.on_slow_offload != "wait"))
    return Offload::kDrop;
  if (options_.offload == "context" && object.cls != ObjectClass::kContext) return Offload::kDrop;
  if (stays_on_disk(object.tenant, object.key())) return Offload::kDrop;
  if (!tier_.offloading(disk_name(object.tenant, object.key())) && !within_disk_quota(object, now))
    return Offload::kDrop;
  bool full = false, started = false;
  each_replica(object, [&](const Replica& r) {
    if (started || r.node->draining) return;
    TierJob job;
    job.object = {disk_name(object.tenant, object.key()),
                  object.bytes,
                  object.checksum,
                  object.generation,
                  record_of(object, r).keep_until_s,
                  static_cast<uint8_t>(object.cls)};
    job.guard_generation = r.generation;
    each_piece(r, object.bytes, [&](const Extent& e) {
      job.pieces.push_back({e.offset, e.bytes, e.guard});
    });
    const DiskReplicaIndex::Queued queued = tier_.offload(r.node->ref.name, std::move(job), now);
    started = queued == DiskReplicaIndex::Queued::kYes;
    full = full || queued == DiskReplicaIndex::Queued::kFull || r.node->tier;
  });
  if (started) {
    due_.set(object, false);
    return Offload::kStarted;
  }
  return full && options_.on_slow_offload == "wait" ? Offload::kLater : Offload::kDrop;
}

bool Master::note_disk(const std::string& name, const DiskObjects::OnDisk& disk, Time now,
                       const char* reason) {
  auto [tenant, key] = parts_of(name);
  if (find_complete(tenants_.find(tenant), key) != nullptr) return false;
  Event& event = events_.add();
  event.kind = static_cast<uint8_t>(EventKind::kRemoved);
  event.tenant = std::move(tenant);
  event.key = std::move(key);
  if (event.tenant.empty()) event.tenant = tenants_[0].name;
  event.bytes = disk.bytes;
  event.checksum = disk.checksum;
  event.nodes.clear();
  event.reason = reason;
  event.at_ms = wall_ms(now);
  event.tier = static_cast<uint8_t>(EventTier::kUntold);
  return true;
}

// Removes the tenant's own disk objects if its disk quota requires it, but no living contexts.
bool Master::within_disk_quota(const Object& object, Time now) {
  const Tenant& t = tenants_[object.tenant];
  if (t.disk_quota == 0) return true;
  const std::string space = disk_name(object.tenant, "");
  if (object.bytes > t.disk_quota) return false;
  const uint64_t now_s = wall_ms(now) / 1000;
  while (tier_.objects().used_by(space) + object.bytes > t.disk_quota) {
    const auto victim = tier_.objects().to_evict(space, now_s);
    if (!victim) return false;
    const auto disk = tier_.objects().find(*victim);
    if (disk && note_disk(*victim, *disk, now, "evicted: its tenant is at its quota of the disks"))
      ++totals_.evicted_objects;
    tier_.forget(*victim, {});
  }
  return true;
}

// Whether the object must be written, and no disk takes it now.
bool Master::disks_behind(const Object& object) const {
  if (options_.on_slow_offload != "wait" || options_.offload == "never") return false;
  if (options_.offload == "context" && object.cls != ObjectClass::kContext) return false;
  const std::string name = disk_name(object.tenant, object.key());
  if (stays_on_disk(object.tenant, object.key()) || tier_.offloading(name)) return false;
  bool full = false, room = false;
  each_replica(object, [&](const Replica& r) {
    if (r.node->draining) return;
    const DiskReplicaIndex::Queued queued = tier_.ask(r.node->ref.name, object.bytes);
    full = full || queued == DiskReplicaIndex::Queued::kFull || r.node->tier;
    room = room || queued == DiskReplicaIndex::Queued::kYes;
  });
  return full && !room;
}

// Offloads before eviction needs the memory. If no disk takes the object now, or one failed to
// write it or was lost with it, it is due.
void Master::offload_early(Object& object, Time now, bool failed) {
  const bool early = options_.offload == "eager" ||
                     (options_.offload != "never" && object.cls == ObjectClass::kContext);
  const bool owed = early && !stays_on_disk(object.tenant, object.key()) &&
                    !tier_.offloading(disk_name(object.tenant, object.key()));
  bool takes = false, may_take = false;
  if (owed)
    each_replica(object, [&](const Replica& r) {
      if (r.node->draining || r.node->gone) return;
      const NodeId& node = r.node->ref.name;
      const DiskReplicaIndex::Queued queued = tier_.ask(node, object.bytes);
      takes = takes || queued == DiskReplicaIndex::Queued::kYes;
      if (queued == DiskReplicaIndex::Queued::kFull) due_.behind(node);
      may_take = may_take || !r.node->ready || r.node->tier || tier_.number_of(node);
    });
  due_.set(object, may_take && (failed || !takes));
  if (failed && object.due) due_.failed(now);
  if (!failed && takes) (void)offload(object, now);
}

void Master::offloaded(const std::string& name, Generation generation, bool stored, Time now) {
  const bool victim = evicting_.end(name);
  if (!victim && stored) return;
  const auto [tenant, key] = parts_of(name);
  Object* object = find_complete(tenants_.find(tenant), key);
  if (object == nullptr) return;
  if (!stored) offload_early(*object, now, true);
  if (!victim) return;
  const bool same = stored && object->generation == generation;
  if (!same || !may_go(*object, {}, now)) return enqueue(*object);
  ++totals_.offloaded;
  (void)drop(*object, "", now);
}

}  // namespace mc::store
