// Copies: made by nodes on the master's order, to add, move or drop replicas, to empty a node, and
// to spread what is read much.
//
// A copy goes to a range of its own with a generation of its own. It counts only when the target
// said that the bytes are there and their checksum is right, and has recorded it; then it is added
// to the object, or takes the place of the replica that is given up, whose bytes stay for readers
// until the object's lease ends.
#include <algorithm>
#include <utility>

#include "store/master.h"

namespace mc::store {
namespace {
constexpr size_t kTasksMax = 1 << 16;
constexpr size_t kEndedMax = 1024;  // tasks that can still be asked about
constexpr Duration kScanAgain = std::chrono::milliseconds(100);
constexpr uint64_t kSample = 8;  // one read of so many is counted
constexpr size_t kHeatMax = 1 << 16;

Failure unknown(const ObjectKey& key) {
  return fail(Code::kNotFound, "no key '%s'", shown(key).c_str());
}
}  // namespace

Result<uint64_t> Master::start_copy(Object& object, const Wish& wish, const Member* move_from,
                                    Time now) {
  if (tasks_.size() >= kTasksMax + kEndedMax)
    return fail(Code::kBusy, "%zu copies are on their way already: retry", tasks_.size());
  std::vector<Replica> used;
  each_replica(object, [&](const Replica& r) { used.push_back(r); });
  if (move_from == nullptr && used.size() >= kReplicasMax)
    return fail(Code::kInvalid, "key '%s' has %zu replicas: that is the most there may be",
                shown(object.key()).c_str(), used.size());
  if (std::any_of(used.begin(), used.end(),
                  [&](const Replica& r) { return r.node->ref.name == wish.prefer; }))
    return fail(Code::kExists, "key '%s': node %s has one already", shown(object.key()).c_str(),
                shown(wish.prefer).c_str());
  const auto source = std::find_if(used.begin(), used.end(), [&](const Replica& r) {
    return members_.healthy(*r.node, now) && (move_from == nullptr || r.node == move_from);
  });
  if (source == used.end())
    return fail(Code::kUnavailable, "key '%s': its node does not answer",
                shown(object.key()).c_str());
  const auto at = members_.place(object.bytes, used, wish, now);
  if (!at || (!wish.prefer.empty() && at->node->ref.name != wish.prefer)) {
    if (at) members_.unplace(*at);
    return fail(Code::kNoSpace, "no room for another replica of '%s' (%s)%s%s",
                shown(object.key()).c_str(), human_bytes(object.bytes).c_str(),
                wish.prefer.empty() ? "" : " on node ", shown(wish.prefer).c_str());
  }
  filled_ = true;
  leases_.grant(object, now);
  const uint64_t id = next_task_++;
  Task& task = tasks_[id];
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
  PendingOrder about;
  about.order.task = id;
  about.order.from = source->node->ref;
  std::vector<NodeRef> nodes;
  std::vector<const Member*> named;
  about.order.source = place_of(object, *source, nodes, named);
  about.order.source.generation = source->generation;
  members_.order(*at->node, OrderKind::kCopy,
                 record_of(object, {at->node, at->range, task.generation}), {}, std::move(about));
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
  ended_tasks_.push_back(id);
  if (ended_tasks_.size() <= kEndedMax) return;
  tasks_.erase(ended_tasks_.front());
  ended_tasks_.pop_front();
}

Result<rpc::Empty> Master::handle(const TaskDone& m, Time now) {
  const auto it = tasks_.find(m.task);
  Member* node = members_.find(m.node, m.generation);
  if (node == nullptr || it == tasks_.end() || it->second.state != Task::State::kRunning ||
      it->second.target_mount != node->mount || it->second.range == kNoId)
    return fail(Code::kStale, "task %llu of node '%s' is not running",
                static_cast<unsigned long long>(m.task), shown(m.node).c_str());
  Task& task = it->second;
  Record record;
  const Replica at{node, task.range, task.generation};
  const Object* object = find_complete(task.tenant, task.key);
  const bool same =
      object != nullptr && object->checksum == task.checksum && object->bytes == task.bytes;
  if (m.outcome.ok() && same) {
    PendingOrder about;
    about.task = m.task;
    members_.order(*node, OrderKind::kRecord, record_of(*object, at), {}, std::move(about));
    finish(now);
    return rpc::Empty{};
  }
  Object gone;  // for the places of its pieces only
  gone.bytes = task.bytes;
  record = record_of(gone, at);
  record.key = task.key;
  forget(at, std::move(record), {});
  end_task(m.task, task, {Code::kUnavailable, same ? m.outcome.what : "removed meanwhile"});
  finish(now);
  return rpc::Empty{};
}

void Master::copied(uint64_t id, Time now) {
  const auto it = tasks_.find(id);
  if (it == tasks_.end() || it->second.state != Task::State::kRunning) return;
  Task& task = it->second;
  Member* node = members_.find_mount(task.target, task.target_mount);
  if (node == nullptr) return end_task(id, task, {Code::kUnavailable, "its target is gone"});
  const Replica at{node, task.range, task.generation};
  Object* object = find_complete(task.tenant, task.key);
  bool fits = object != nullptr && object->checksum == task.checksum &&
              object->bytes == task.bytes && replica_count(*object) < kReplicasMax + 1;
  if (fits) each_replica(*object, [&](const Replica& r) { fits = fits && r.node != node; });
  if (!fits) {
    Object gone;
    gone.bytes = task.bytes;
    Record record = record_of(gone, at);
    record.key = task.key;
    record.generation = task.generation;
    forget(at, std::move(record), {});
    return end_task(id, task, {Code::kUnavailable, "removed meanwhile"});
  }
  add_replica(*object, at);
  if (task.move)
    if (const Member* source = members_.find_mount(task.source, task.source_mount))
      retire(*object, *source, now);
  note(EventKind::kMoved, *object, now, task.move ? "moved" : "copied");
  end_task(id, task, {Code::kInternal, {}});
}

// Gives a replica up; readers that were told of it may finish.
void Master::retire(Object& object, const Member& node, Time now) {
  Record record;
  each_replica(object, [&](const Replica& r) {
    if (r.node == &node) record = record_of(object, r);
  });
  const Replica old = take_replica(object, node);
  if (old.node == nullptr) return;
  old.node->space.set_owner(old.range, kNoId);
  resting_.emplace(leases_.held(object, now) ? object.until : now,
                   Resting{node.ref.name, node.mount, old.range, std::move(record)});
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
      return fail(Code::kNotFound, "key '%s' has no replica on node '%s'", shown(m.key).c_str(),
                  shown(m.from).c_str());
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
  if (replica_count(*object) < m.replicas) {  // one at a time: ask again when it is done
    MC_TRY(reply.task, start_copy(*object, {}, nullptr, now));
    reply.state = "running";
  }
  finish(now);
  return reply;
}

Result<TaskInfo> Master::handle(const QueryTask& m, Time) const {
  const auto it = tasks_.find(m.task);
  if (it == tasks_.end())
    return fail(Code::kNotFound, "no task %llu: it ended long ago, or before the master started",
                static_cast<unsigned long long>(m.task));
  constexpr const char* kStates[] = {"running", "done", "failed"};
  return TaskInfo{epoch_, m.task, kStates[static_cast<size_t>(it->second.state)], it->second.error};
}

// ---- draining

// Of one object on the node: true when it is on its way, or needs none.
bool Master::drain_one(const NodeId& name, Member& node, DrainJob& job, Object& object, Time now) {
  bool elsewhere = false;
  each_replica(object, [&](const Replica& r) {
    elsewhere = elsewhere || (!r.node->draining && members_.healthy(*r.node, now));
  });
  if (elsewhere) {
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
  tasks_.at(*task).drain = name;
  ++job.active;
  return true;
}

void Master::drain_on(const NodeId& name, DrainJob& job, Time now) {
  Member* node = members_.find_mount(name, job.mount);
  if (node == nullptr) return;
  if (job.todo.empty() && job.active == 0 && now >= job.next_scan) {
    std::set<Id> owners;
    for (Id r = node->space.first(); r != kNoId; r = node->space.after(r))
      if (node->space.taken(r) && node->space.owner(r) != kNoId)
        owners.insert(node->space.owner(r));
    for (const Id id : owners) job.todo.emplace_back(id, table_[id].generation);
  }
  job.demand = 0;
  while (!job.todo.empty() && job.active < options_.drain_parallel) {
    const auto [id, generation] = job.todo.back();
    Object* object = table_.at(id, generation);
    // What is being written is met again by the next scan.
    if (object == nullptr || object->state != ObjectState::kComplete) {
      job.todo.pop_back();
      continue;
    }
    if (!drain_one(name, *node, job, *object, now)) {
      if (job.demand == 0) job.todo.pop_back();  // it is tried again by the next scan
      break;
    }
    job.todo.pop_back();
    job.why.clear();
  }
  if (node->space.used() == 0)
    job.next_scan = Time::max();
  else if (job.next_scan <= now)
    job.next_scan = now + kScanAgain;
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
  info.moved = job.moved;
  info.moved_bytes = job.moved_bytes;
  info.active = job.active;
  info.why = job.why;
  const bool stuck = job.active == 0 && !job.why.empty() && info.bytes_left > 0;
  info.state = member->second->space.used() == 0 ? "drained" : stuck ? "blocked" : "running";
  return info;
}

Result<DrainInfo> Master::handle(const Drain& m, Time now) {
  Member* node = members_.find(m.node);
  if (node == nullptr)
    return fail(Code::kNotFound, "no node '%s' is mounted", shown(m.node).c_str());
  switch (static_cast<DrainAction>(m.action)) {
    case DrainAction::kQuery: break;
    case DrainAction::kStart:
      if (drains_.contains(m.node)) break;
      members_.drain(*node, true);
      drains_[m.node].mount = node->mount;
      drains_[m.node].started = drains_[m.node].next_scan = now;
      break;
    case DrainAction::kCancel:
      if (const auto it = drains_.find(m.node); it != drains_.end()) {
        for (auto& [id, task] : tasks_)
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

// ---- what is read much

void Master::note_heat(Object& object, Time now) {
  if (++reads_ % kSample != 0 || heat_.size() >= kHeatMax) return;
  if (heat_.empty() && heated_.empty()) heat_since_ = now;
  const double enough = options_.hot_rate * to_seconds(options_.hot_window) / kSample;
  if (static_cast<double>(++heat_[object.self]) < enough) return;
  heat_[object.self] = 0;
  const auto replicas = static_cast<uint32_t>(replica_count(object));
  if (replicas >= options_.hot_replicas || !start_copy(object, {}, nullptr, now)) return;
  ++totals_.hot_copies;
  heated_.emplace(std::pair{object.tenant, ObjectKey(object.key())}, replicas);
}

// At the end of a window: what is not read any more goes back to what it had.
void Master::cool_down(Time now) {
  if ((heat_.empty() && heated_.empty()) || now < heat_since_ + options_.hot_window) return;
  for (auto it = heated_.begin(); it != heated_.end();) {
    Object* object = find_complete(it->first.first, it->first.second);
    if (object != nullptr && heat_.contains(object->self)) {
      ++it;
      continue;
    }
    while (object != nullptr && replica_count(*object) > it->second)
      retire(*object, *extras_.at(object->self).replicas.back().node, now);
    it = heated_.erase(it);
  }
  heat_.clear();
  heat_since_ = now;
}

}  // namespace mc::store
