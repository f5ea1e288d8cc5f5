// Copies between nodes: they add, move or drop replicas, drain a node, and replicate hot objects.
//
// The target reserves a range and a generation of its own for a copy. The copy counts only after
// the target confirmed its checksum and recorded it. Then it joins the object's replicas, or takes
// the place of the moved one, whose bytes stay until the object's lease ends.
#include <algorithm>
#include <utility>

#include "store/master/master.h"

namespace mc::store {
namespace {
constexpr size_t kTasksMax = 1 << 16;
constexpr size_t kEndedMax = 1024;  // ended tasks that task-info still finds
constexpr uint64_t kSample = 8;     // one of so many reads is counted
constexpr size_t kHeatMax = 1 << 16;

Failure unknown(const ObjectKey& key) {
  return fail(Code::kNotFound, "no key '%s'", escape(key).c_str());
}
}  // namespace

Result<uint64_t> Master::start_copy(Object& object, const PlacementRequest& request,
                                    const Member* move_from, Time now) {
  if (tasks_.all.size() >= kTasksMax + kEndedMax)
    return fail(Code::kBusy, "%zu copies are on their way already: retry", tasks_.all.size());
  std::vector<Replica> used;
  each_replica(object, [&](const Replica& r) { used.push_back(r); });
  if (move_from == nullptr && used.size() >= kReplicasMax)
    return fail(Code::kInvalid, "key '%s' has %zu replicas: that is the most there may be",
                escape(object.key()).c_str(), used.size());
  if (std::any_of(used.begin(), used.end(),
                  [&](const Replica& r) { return r.node->ref.name == request.prefer; }))
    return fail(Code::kExists, "key '%s': node %s has one already", escape(object.key()).c_str(),
                escape(request.prefer).c_str());
  if (move_from == nullptr)
    MC_TRY_(tenants_.may_copy(object, group_of(object),
                              used.front().node->space.rounded(object.bytes), members_.capacity()));
  const auto source = std::find_if(used.begin(), used.end(), [&](const Replica& r) {
    return members_.healthy(*r.node, now) && (move_from == nullptr || r.node == move_from);
  });
  if (source == used.end())
    return fail(Code::kUnavailable, "key '%s': its node does not answer",
                escape(object.key()).c_str());
  const auto at = members_.place(object.bytes, used, request, now);
  if (!at || (!request.prefer.empty() && at->node->ref.name != request.prefer)) {
    if (at) members_.unplace(*at);
    return fail(Code::kNoSpace, "no room for another replica of '%s' (%s)%s%s",
                escape(object.key()).c_str(), rounded_bytes_text(object.bytes).c_str(),
                request.prefer.empty() ? "" : " on node ", escape(request.prefer).c_str());
  }
  ++placed_;
  placed_bytes_ += object.bytes;
  // Any other lease ends later, also one of this moment.
  const bool read = leases_.held(object, now);
  const Time leased = leases_.grant(object, read ? now : now - Duration(1));
  const uint64_t id = tasks_.next++;
  Task& task = tasks_.all[id];
  task.leased = read ? Time::min() : leased;
  task.tenant = object.tenant;
  task.key = object.key();
  task.bytes = object.bytes;
  task.checksum = object.checksum;
  task.target = at->node->ref.name;
  task.target_mount = at->node->mount;
  task.source = source->node->ref.name;
  task.source_mount = source->node->mount;
  task.range = at->range;
  task.generation = next_generation();
  task.move = move_from != nullptr;
  std::vector<NodeRef> nodes;
  std::vector<const Member*> named;
  Order& order = members_.order(*at->node, OrderKind::kCopy, {}, {});
  order.task = id;
  order.from = source->node->ref;
  order.source = place_of(object, *source, nodes, named);
  order.source.generation = source->generation;
  record_of(object, {at->node, at->range, task.generation}, order.record);
  return id;
}

void Master::end_task(uint64_t id, Task& task, Error error) {
  const bool done = error.what.empty();
  task.state = done ? Task::State::kDone : Task::State::kFailed;
  ++(done ? totals_.copies_done : totals_.copies_failed);
  task.error = std::move(error.what);
  if (const auto job = drains_.find(task.drain); job != drains_.end()) {
    --job->second.active;
    job->second.why = task.error;
    if (done) {
      ++job->second.moved;
      job->second.moved_bytes += task.bytes;
    }
  }
  tasks_.ended.push_back(id);
  if (tasks_.ended.size() <= kEndedMax) return;
  tasks_.all.erase(tasks_.ended.front());
  tasks_.ended.pop_front();
}

Result<rpc::Empty> Master::handle(const TaskDone& m, Time now) {
  if (ReplicaChecks::is_check(m.task)) return checked(m, now);
  const auto it = tasks_.all.find(m.task);
  Member* node = members_.find(m.node, m.generation);
  if (node == nullptr || !node->mounted_as(m.mount) || it == tasks_.all.end() ||
      it->second.state != Task::State::kRunning || it->second.target_mount != node->mount ||
      it->second.range == kNoId)
    return fail(Code::kStale, "task %llu of node '%s' is not running",
                static_cast<unsigned long long>(m.task), escape(m.node).c_str());
  Task& task = it->second;
  const Replica at{node, task.range, task.generation};
  const Object* object = find_complete(task.tenant, task.key);
  const bool same =
      object != nullptr && object->checksum == task.checksum && object->bytes == task.bytes;
  if (m.outcome.ok() && same) {
    PendingOrder about;
    about.task = m.task;
    record_of(*object, at, members_.order(*node, OrderKind::kRecord, {}, std::move(about)).record);
    finish(now);
    return rpc::Empty{};
  }
  give_back(task, at);
  if (same && m.outcome.code == static_cast<uint8_t>(Code::kCorrupt))
    check_replica(*object, task.source, {}, now);
  end_task(m.task, task, {Code::kUnavailable, same ? m.outcome.what : "removed meanwhile"});
  finish(now);
  return rpc::Empty{};
}

// Gives up the target's range of a copy that failed. The object may be gone.
void Master::give_back(const Task& task, const Replica& at) {
  Object object;  // only for record_of()
  object.tenant = task.tenant;
  object.bytes = task.bytes;
  ObjectRecord record = record_of(object, at);
  record.key = task.key;
  forget(at, std::move(record));
}

void Master::copied(uint64_t id, Time now) {
  const auto it = tasks_.all.find(id);
  if (it == tasks_.all.end() || it->second.state != Task::State::kRunning) return;
  Task& task = it->second;
  Member* node = members_.find_mount(task.target, task.target_mount);
  if (node == nullptr) return end_task(id, task, {Code::kUnavailable, "its target is gone"});
  const Replica at{node, task.range, task.generation};
  Object* object = find_complete(task.tenant, task.key);
  bool fits = object != nullptr && object->checksum == task.checksum &&
              object->bytes == task.bytes && replica_count(*object) < kReplicasMax + 1;
  if (fits) each_replica(*object, [&](const Replica& r) { fits = fits && r.node != node; });
  std::string why = "removed meanwhile";
  if (fits && !task.move) {
    const auto may = tenants_.may_copy(*object, group_of(*object),
                                       node->space.rounded(object->bytes), members_.capacity());
    fits = may.has_value();
    if (!may) why = may.error().what;
  }
  if (!fits) {
    give_back(task, at);
    return end_task(id, task, {Code::kUnavailable, std::move(why)});
  }
  add_replica(*object, at);
  if (task.move && object->leased && object->until == task.leased) leases_.drop(*object);
  if (task.move)
    if (const Member* source = members_.find_mount(task.source, task.source_mount))
      retire(*object, *source, now);
  note(EventKind::kMoved, *object, now, task.move ? "moved" : "copied");
  offload_early(*object, now);  // a disk that drains may be the only one that has it
  end_task(id, task, {Code::kInternal, {}});
}

// Gives up a replica. Readers that located it may finish.
void Master::retire(Object& object, const Member& node, Time now) {
  ObjectRecord record;
  each_replica(object, [&](const Replica& r) {
    if (r.node == &node) record = record_of(object, r);
  });
  const Replica old = take_replica(object, node);
  if (old.node == nullptr) return;
  old.node->space.set_owner(old.range, kNoId);
  quarantined_.emplace(leases_.held(object, now) ? object.until : now,
                       QuarantinedRange{node.ref.name, node.mount, old.range, std::move(record)});
}

Result<TaskInfo> Master::handle(const CopyKey& m, Time now) {
  Object* object = find_complete(tenants_.find(m.tenant), m.key);
  if (object == nullptr) return unknown(m.key);
  const Member* from = nullptr;
  if (m.move) {
    each_replica(*object, [&](const Replica& r) {
      if (from == nullptr && (m.from.empty() || r.node->ref.name == m.from)) from = r.node;
    });
    if (from == nullptr)
      return fail(Code::kNotFound, "key '%s' has no replica on node '%s'", escape(m.key).c_str(),
                  escape(m.from).c_str());
  }
  MC_TRY(const uint64_t task, start_copy(*object, {m.to, {}, false}, from, now));
  finish(now);
  return TaskInfo{epoch_, task, "running", {}};
}

Result<TaskInfo> Master::handle(const ChangeReplicas& m, Time now) {
  Object* object = find_complete(tenants_.find(m.tenant), m.key);
  if (object == nullptr) return unknown(m.key);
  if (m.replicas < 1 || m.replicas > kReplicasMax)
    return fail(Code::kInvalid, "replicas %u: want 1 to %u", m.replicas, kReplicasMax);
  TaskInfo reply{epoch_, 0, "done", {}};
  while (replica_count(*object) > m.replicas)
    retire(*object, *extras_.at(object->self).replicas.back().node, now);
  if (replica_count(*object) < m.replicas) {  // one at a time: the caller asks again
    MC_TRY(reply.task, start_copy(*object, {}, nullptr, now));
    reply.state = "running";
  }
  finish(now);
  return reply;
}

Result<TaskInfo> Master::handle(const QueryTask& m, Time) const {
  const auto it = tasks_.all.find(m.task);
  if (it == tasks_.all.end())
    return fail(Code::kNotFound, "no task %llu: it ended long ago, or before the master started",
                static_cast<unsigned long long>(m.task));
  constexpr const char* kStates[] = {"running", "done", "failed"};
  return TaskInfo{epoch_, m.task, kStates[static_cast<size_t>(it->second.state)], it->second.error};
}

// ---- hot objects

void Master::note_heat(Object& object, Time now) {
  if (++heat_.reads % kSample != 0 || heat_.counts.size() >= kHeatMax) return;
  if (heat_.counts.empty() && heat_.heated.empty()) heat_.since = now;
  const double enough = options_.hot_rate * to_seconds(options_.hot_window) / kSample;
  if (static_cast<double>(++heat_.counts[object.self]) < enough) return;
  heat_.counts[object.self] = 0;
  const auto replicas = static_cast<uint32_t>(replica_count(object));
  if (replicas >= options_.hot_replicas || !start_copy(object, {}, nullptr, now)) return;
  ++totals_.hot_copies;
  heat_.heated.emplace(std::pair{object.tenant, ObjectKey(object.key())}, replicas);
}

// At the end of a window, objects that are no longer hot lose their extra replicas.
void Master::cool_down(Time now) {
  if ((heat_.counts.empty() && heat_.heated.empty()) || now < heat_.since + options_.hot_window)
    return;
  for (auto it = heat_.heated.begin(); it != heat_.heated.end();) {
    Object* object = find_complete(it->first.first, it->first.second);
    if (object != nullptr && heat_.counts.contains(object->self)) {
      ++it;
      continue;
    }
    while (object != nullptr && replica_count(*object) > it->second)
      retire(*object, *extras_.at(object->self).replicas.back().node, now);
    it = heat_.heated.erase(it);
  }
  heat_.counts.clear();
  heat_.since = now;
}

}  // namespace mc::store
