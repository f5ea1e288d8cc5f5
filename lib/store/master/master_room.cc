// Eviction: what, when, and in which order.
#include <algorithm>
#include <utility>

#include "store/master/master.h"

namespace mc::store {
namespace {
constexpr size_t kSkipMax = 1024;  // objects that one eviction may skip
// A step of background eviction, in which calls wait, takes so many victims and bytes: the fewest,
// unless a message placed more before it, and the most.
constexpr uint64_t kSlice = 16, kSliceMax = 64;
constexpr uint64_t kSliceBytes = 64 * kMiB, kSliceBytesMax = 256 * kMiB;
}  // namespace

// Whether a victim and all of its group may be evicted.
bool Master::may_go(const Object& object, const Need& need, Time now) const {
  // Keep the newest object if it is larger than the reserve.
  if (need.ahead && object.self == newest_) return false;
  bool useful = false;  // a healthy node returns the space, and the need counts that node
  each_replica(object, [&](const Replica& r) {
    useful = useful || ((need.draining || !r.node->draining) && members_.healthy(*r.node, now));
  });
  if (!useful) return false;
  const auto stays = [&](const Object& o) {
    return o.state == ObjectState::kComplete &&
           (leases_.held(o, now) || Tenants::stays(o.cls, o.pin));
  };
  const auto group = together_with(object);
  return !stays(object) &&
         std::none_of(group.begin(), group.end(), [&](Id id) { return stays(table_[id]); });
}

void Master::Evicting::add(std::string name, uint64_t frees, Tenant& tenant) {
  if (!victims.emplace(std::move(name), Victim{frees, &tenant}).second) return;
  bytes += frees;
  tenant.offloading += frees;
}

bool Master::Evicting::end(const std::string& name) {
  const auto it = victims.find(name);
  if (it == victims.end()) return false;
  bytes -= it->second.bytes;
  it->second.tenant->offloading -= it->second.bytes;
  victims.erase(it);
  return true;
}

// Bytes that are free now, or once the object is on a disk.
uint64_t Master::evict_one(Object& object, const Need& need, Time now) {
  if (need.at_once) return drop(object, need.reason, now);
  switch (offload(object, now)) {
    case Offload::kDrop: return drop(object, need.reason, now);
    case Offload::kLater: return 0;
    case Offload::kStarted: break;
  }
  dequeue(object);
  uint64_t coming = 0;
  each_replica(object, [&](const Replica& r) { coming += r.node->space.rounded(object.bytes); });
  evicting_.add(disk_name(object.tenant, object.key()), coming, tenants_[object.tenant]);
  return coming;
}

// Drops victims, of one tenant or of all, whose writes to disks are pending.
void Master::drop_offloads(const Tenant* of, const Need& need, Time now) {
  std::vector<std::string> names;
  size_t looked_at = 0;
  uint64_t bytes = 0;
  for (const auto& [name, victim] : evicting_.victims) {
    if (bytes >= need.bytes || ++looked_at > kSkipMax) break;
    if (of != nullptr && victim.tenant != of) continue;
    const auto [tenant, key] = parts_of(name);
    const Object* object = find_complete(tenants_.find(tenant), key);
    if (object == nullptr || !may_go(*object, need, now)) continue;
    names.push_back(name);
    bytes += victim.bytes;
  }
  for (const std::string& name : names) {
    const auto [tenant, key] = parts_of(name);
    tier_.forget(name, {});
    (void)drop(*find_complete(tenants_.find(tenant), key), need.reason, now);
  }
}

uint64_t Master::drop(Object& object, const char* reason, Time now) {
  uint64_t freed = 0;
  each_replica(object, [&](const Replica& r) { freed += r.node->space.rounded(object.bytes); });
  ++totals_.evicted_objects;
  totals_.evicted_bytes += object.bytes;
  if (on_disk(object.tenant, object.key()))
    note(EventKind::kMoved, object, now, "a disk has it", EventTier::kDisk);
  else
    note(EventKind::kRemoved, object, now, reason);
  release(object, {});
  return freed;
}

// Evicts from one queue of a tenant, until enough is freed or nothing there may go. Decrements
// need.most.
uint64_t Master::evict_from(Tenant& tenant, size_t q, Need& need, Time now) {
  EvictQueue& queue = tenant.queues[q];
  const auto leased = [&](const Object& o) { return leases_.held(o, now); };
  uint64_t freed = 0;
  for (size_t skipped = 0;
       freed < need.bytes && need.most > 0 && skipped <= std::min(kSkipMax, queue.size());) {
    Object* victim = queue.victim(leased);
    if (victim == nullptr) break;
    if (!may_go(*victim, need, now) || disks_behind(*victim)) {
      ++skipped;
      queue.skip();
      continue;
    }
    const auto group = together_with(*victim);
    std::vector<Id> together(group.begin(), group.end());
    if (together.empty()) together.push_back(victim->self);
    need.most -= std::min(need.most, together.size());
    for (const Id id : together)
      if (Object& o = table_[id]; o.state == ObjectState::kComplete)
        freed += evict_one(o, need, now);
  }
  return freed;
}

// Evicts from all tenants, first from those that use most of their quota. Soft pinned objects go
// only if there is nothing else.
Master::Evicted Master::evict(Need need, Time now) {
  ++totals_.evictions;
  Evicted out;
  const uint64_t capacity = members_.capacity();
  const auto pressure = [&](const Tenant& t) {
    const uint64_t share = t.quota > 0 ? std::min(t.quota, capacity) : capacity;
    return static_cast<double>(t.used) / static_cast<double>(std::max<uint64_t>(share, 1));
  };
  for (size_t q = 0; q < 3; ++q) {
    std::vector<Tenant*> open;
    for (const auto& tenant : tenants_.all())
      if (tenant->queues[q].size() > 0) open.push_back(tenant.get());
    while (need.bytes > 0 && need.most > 0 && !open.empty()) {
      const auto most = std::max_element(
          open.begin(), open.end(),
          [&](const Tenant* a, const Tenant* b) { return pressure(*a) < pressure(*b); });
      Need part = need;
      if (open.size() > 1) part.bytes = std::max(need.bytes / 4, kPage);
      const uint64_t freed = evict_from(**most, q, part, now);
      out.bytes += freed;
      need.bytes -= std::min(need.bytes, freed);
      need.most = part.most;
      if (freed < part.bytes) open.erase(most);
    }
  }
  if (out.bytes > 0) ++totals_.made_room;
  out.all = need.bytes > 0 && need.most > 0;
  return out;
}

// Above the watermark, evicts a part; further parts follow between calls (deadline()).
void Master::work_ahead(Time now) {
  const uint64_t used = members_.used() - std::min(members_.used(), evicting_.bytes);
  const uint64_t capacity = members_.capacity();
  const double high = options_.high_watermark, ratio = options_.eviction_ratio;
  const uint64_t placed = std::exchange(placed_, 0), in_bytes = std::exchange(placed_bytes_, 0);
  if (placed > 0)  // not if nodes that left or mount filled the pool
    ahead_ = std::max(ahead_, bytes_to_evict(used, capacity, high, ratio));
  if (ahead_ == 0) return;
  ahead_ = std::min(ahead_, bytes_to_evict(used, capacity, high - ratio, 0));  // others went, too
  if (ahead_ == 0) return;
  const uint64_t most = std::clamp(placed, kSlice, kSliceMax);
  const uint64_t bytes = std::min(ahead_, std::clamp(in_bytes, kSliceBytes, kSliceBytesMax));
  const Evicted step =
      evict({bytes, "evicted: the pool is above its watermark", true, most, false, false}, now);
  ahead_ = step.all || step.bytes == 0 ? 0 : ahead_ - std::min(ahead_, step.bytes);
}

void Master::make_room(Time now) {
  work_ahead(now);
  uint64_t drained = 0;
  for (const auto& [node, job] : drains_) drained += job.demand;
  const uint64_t demand = parked_.demand + drained;
  if (demand == 0) return;
  if (parked_.late_demand > 0) drop_for_late_puts(now);
  const uint64_t coming = members_.releasing(now) + evicting_.bytes;
  if (demand > coming)
    (void)evict(
        {demand - coming,
         parked_.demand > 0 ? "evicted: room for a put" : "evicted: room for a node that drains",
         false, SIZE_MAX, false, false},
        now);
}

// The disks were too slow for these puts: they get memory that no disk has, of objects whose writes
// have not begun if there are any.
void Master::drop_for_late_puts(Time now) {
  Need need{0, "evicted: room for a put, as the disks are behind", false, SIZE_MAX, false, true};
  const auto lacks = [&] {
    need.bytes = parked_.late_demand - std::min(parked_.late_demand, members_.releasing(now));
    return need.bytes > 0;
  };
  if (lacks()) (void)evict(need, now);
  if (lacks()) drop_offloads(nullptr, need, now);
}

}  // namespace mc::store
