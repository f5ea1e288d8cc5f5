// Drains nodes. A draining node gets nothing new. Copies move its memory to other nodes. What only
// its disk holds is promoted into other nodes' memory, and from there goes to their disks as usual.
#include <algorithm>

#include "store/master/master.h"

namespace mc::store {
namespace {
constexpr Duration kScanAgain = std::chrono::milliseconds(100);
constexpr size_t kAtOnce = 256;  // names of a disk examined in one turn
}  // namespace

// Whether it has a memory replica on a node that stays.
bool Master::stays_in_memory(const Object& object, Time now) const {
  bool stays = false;
  each_replica(object, [&](const Replica& r) {
    stays = stays || (!r.node->draining && members_.healthy(*r.node, now));
  });
  return stays;
}

// Drains one object of the node's memory. Returns: true if its copy runs or is not needed.
bool Master::drain_one(const NodeId& name, Member& node, DrainJob& job, Object& object, Time now) {
  if (stays_in_memory(object, now)) {
    ++job.moved;
    job.moved_bytes += object.bytes;
    retire(object, node, now);
    note(EventKind::kMoved, object, now, "its node drains");
    return true;
  }
  const auto task = start_copy(object, {}, &node, now);
  if (!task) {
    job.why = task.error().what;
    if (task.error().code == Code::kNoSpace) job.demand = object.bytes + kPage;
    return false;
  }
  tasks_.all.at(*task).drain = name;
  ++job.active;
  return true;
}

void Master::drain_memory(const NodeId& name, Member& node, DrainJob& job, Time now) {
  if (job.todo.empty() && job.active == 0 && now >= job.next_scan) {
    std::set<Id> owners;
    for (Id r = node.space.first(); r != kNoId; r = node.space.after(r))
      if (node.space.taken(r) && node.space.owner(r) != kNoId) owners.insert(node.space.owner(r));
    for (const Id id : owners) job.todo.emplace_back(id, table_[id].generation);
  }
  job.demand = 0;
  while (!job.todo.empty() && job.active < options_.drain_parallel) {
    const auto [id, generation] = job.todo.back();
    Object* object = table_.at(id, generation);
    // The next scan meets an unfinished put again.
    if (object == nullptr || object->state != ObjectState::kComplete) {
      job.todo.pop_back();
      continue;
    }
    if (!drain_one(name, node, job, *object, now)) {
      if (job.demand == 0) job.todo.pop_back();  // the next scan tries it again
      break;
    }
    job.todo.pop_back();
    job.why.clear();
  }
}

// Drains one object of the node's disk. Returns: true if its copy there is not needed any more.
bool Master::drained_off_disk(const NodeId& node, DrainJob& job, const std::string& name,
                              Time now) {
  const auto disk = tier_.objects().find(name);
  if (!disk) return true;
  const auto [tenant, key] = parts_of(name);
  const Object* object = find_complete(tenants_.find(tenant), key);
  const bool elsewhere =
      std::any_of(disk->copies.begin(), disk->copies.end(), [&](const DiskObjects::Copy& c) {
        const Member* member = members_.find(tier_.node_of(c).name);
        return member != nullptr && !member->draining && members_.healthy(*member, now);
      });
  if (!elsewhere && (object == nullptr || !stays_in_memory(*object, now))) return false;
  ++job.moved;
  job.moved_bytes += disk->bytes;
  tier_.forget_copy(node, name, now);
  return true;
}

// Examines a few objects at a time, in turn. After all of them it pauses and starts over.
void Master::drain_disk(const NodeId& node, DrainJob& job, Time now) {
  if (now < job.next_disk) return;
  job.next_disk = now + kScanAgain;
  const auto holder = tier_.number_of(node);
  if (!holder) return;
  const DiskObjects& disks = tier_.objects();
  if (job.disk_left == 0) job.disk_left = disks.held_by(*holder).first;
  for (size_t i = 0; i < kAtOnce && job.disk_left > 0; ++i, --job.disk_left) {
    if (job.bringing.size() >= options_.drain_parallel) return;
    const auto name = disks.first_on(*holder);
    if (!name) break;
    if (!job.bringing.contains(*name)) {
      if (drained_off_disk(node, job, *name, now)) continue;  // another is the first
      const auto [tenant, key] = parts_of(*name);
      // A copy moves what is in the node's memory too; that comes first.
      const bool in_memory = find_complete(tenants_.find(tenant), key) != nullptr;
      if (!in_memory && tier_.bring(node, *name)) job.bringing.insert(*name);
    }
    tier_.turn(node);
  }
  if (disks.held_by(*holder).first == 0) job.disk_left = 0;
  if (job.disk_left > 0) job.next_disk = now;
}

void Master::brought(const NodeId& node, const std::string& name, Code code, Time now) {
  const auto it = drains_.find(node);
  if (it == drains_.end() || it->second.bringing.erase(name) == 0) return;
  DrainJob& job = it->second;
  job.next_disk = code == Code{} ? now : now + kScanAgain;
  if (code == Code::kNotFound) tier_.forget_copy(node, name, now);
  if (drained_off_disk(node, job, name, now))
    job.why.clear();
  else if (code != Code{})
    job.why = strf("'%s' on its disk could not be moved: %s", escape(parts_of(name).second).c_str(),
                   ::mc::name(code));
}

void Master::drain_on(const NodeId& name, DrainJob& job, Time now) {
  Member* node = members_.find_mount(name, job.mount);
  if (node == nullptr) return;
  drain_memory(name, *node, job, now);
  drain_disk(name, job, now);
  if (drained(*node))
    job.next_scan = job.next_disk = Time::max();
  else if (job.next_scan <= now)
    job.next_scan = now + kScanAgain;
}

bool Master::drained(const Member& node) const {
  return node.space.used() == 0 && tier_.empty(node.ref.name);
}

void Master::drain_all(Time now) {
  for (auto& [name, job] : drains_) drain_on(name, job, now);
}

DrainInfo Master::drain_info(const NodeId& name) const {
  DrainInfo info;
  info.epoch = epoch_;
  info.node = name;
  info.state = "none";
  const auto it = drains_.find(name);
  const auto member = members_.all().find(name);
  if (it == drains_.end() || member == members_.all().end()) return info;
  const DrainJob& job = it->second;
  info.objects_left = member->second->objects;
  info.bytes_left = member->second->space.used() - member->second->releasing;
  if (const auto holder = tier_.number_of(name)) {
    const auto [objects, bytes] = tier_.objects().held_by(*holder);
    info.objects_left += objects;
    info.bytes_left += bytes;
  }
  info.moved = job.moved;
  info.moved_bytes = job.moved_bytes;
  info.active = job.active + job.bringing.size();
  info.why = job.why;
  for (const auto& [other, m] : members_.all())
    if (m->ready && !m->draining) ++info.others;
  const bool stuck = info.active == 0 && !job.why.empty() && info.bytes_left > 0;
  info.state = drained(*member->second) ? "drained" : stuck ? "blocked" : "running";
  return info;
}

Result<DrainInfo> Master::handle(const Drain& m, Time now) {
  Member* node = members_.find(m.node);
  if (node == nullptr)
    return fail(Code::kNotFound, "no node '%s' is mounted", escape(m.node).c_str());
  switch (static_cast<DrainAction>(m.action)) {
    case DrainAction::kQuery: break;
    case DrainAction::kStart:
      if (drains_.contains(m.node)) break;
      members_.drain(*node, true);
      drains_[m.node].mount = node->mount;
      drains_[m.node].started = drains_[m.node].next_scan = drains_[m.node].next_disk = now;
      break;
    case DrainAction::kCancel:
      if (const auto it = drains_.find(m.node); it != drains_.end()) {
        for (auto& [id, task] : tasks_.all)
          if (task.drain == m.node) task.drain.clear();
        drains_.erase(it);
      }
      members_.drain(*node, false);
      room_changed_ = true;
      break;
    default: return fail(Code::kInvalid, "drain action %u: want 0, 1 or 2", unsigned{m.action});
  }
  finish(now);
  DrainInfo info = drain_info(m.node);
  if (const auto it = drains_.find(m.node); it != drains_.end() && info.moved_bytes > 0)
    info.eta_ms = static_cast<uint64_t>(to_ms(now - it->second.started) *
                                        static_cast<double>(info.bytes_left) /
                                        static_cast<double>(info.moved_bytes));
  return info;
}

}  // namespace mc::store
