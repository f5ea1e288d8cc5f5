// Nodes: mounting with an inventory, the order channel, and leaving.
#include "store/master.h"

namespace mc::store {
namespace {
constexpr uint64_t kEpochsAheadMax = 1 << 28;  // of seconds: a clock eight years wrong
constexpr uint64_t kNodesSeenMax = 4096;
}  // namespace

Result<Mounted> Master::handle(const Mount& m, Time now) {
  if (m.epoch_seen > epoch_ + kEpochsAheadMax)
    return fail(Code::kInvalid, "node '%s' saw epoch %llu: this master is at %llu",
                shown(m.node.name).c_str(), static_cast<unsigned long long>(m.epoch_seen),
                static_cast<unsigned long long>(epoch_));
  if (const Member* old = members_.find(m.node.name)) {
    const bool same = old->ref.generation == m.node.generation;
    if (!same && !members_.liveness().suspect(m.node.name, now))
      return fail(Code::kBusy,
                  "node name '%s' is in use by %s, heard just now: choose another --name, or "
                  "retry if that one has ended",
                  shown(m.node.name).c_str(), shown(old->ref.control).c_str());
    drop_node(m.node.name, now);
  }
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
  return Mounted{epoch_, nodes(now)};
}

Result<Mounted> Master::handle(const Inventory& m, Time now) {
  Member* node = members_.find(m.node, m.generation);
  if (node == nullptr)
    return fail(Code::kStale, "inventory of node '%s': mount it first", shown(m.node).c_str());
  if (node->ready || m.records.size() > kInventoryMax)
    return fail(Code::kInvalid, "inventory of node '%s': %zu records, %s", shown(m.node).c_str(),
                m.records.size(), node->ready ? "after the last" : "too many");
  members_.heard(*node, now);
  for (const Record& record : m.records) adopt(*node, record, now);
  if (m.last) {
    members_.ready(*node);
    if (node->returns) rebuild_.reported(m.node);
    room_changed_ = true;
  }
  finish(now);
  return Mounted{epoch_, nodes(now)};
}

void Master::adopt(Member& node, const Record& record, Time now) {
  Record here = record;
  here.offset -= node.layout.data;  // of a lying record: out of range, refused below
  const bool sane =
      check_object_key(record.key) && record.generation && record.offset >= node.layout.data;
  if (!sane || !node.space.reserve(here.offset, here.bytes)) {
    ++totals_.records_refused;
    members_.order(node, OrderKind::kForget, here, record.generation, [](bool, Time) {});
    return;
  }
  Object* object = find(record.key);
  if (object != nullptr && object->state == ObjectState::kComplete &&
      object->generation < record.generation) {
    release(*object, {});  // a later put of the same key
    object = nullptr;
  }
  if (object == nullptr) {
    object = &insert(record.key, record.bytes, record.generation, now);
    object->checksum = record.checksum;
    object->state = ObjectState::kComplete;
    object->replicas.push_back({&node, here.offset});
    node.holds[here.offset] = object;
    publish(*object);
    wake_looks(record.key, now);
    return;
  }
  const bool twin = object->state == ObjectState::kComplete &&
                    object->generation == record.generation && object->bytes == record.bytes &&
                    object->checksum == record.checksum && object->replicas.size() < kReplicasMax &&
                    object->replicas.back().node != &node;
  if (!twin) return forget_range(node, here, {});
  object->replicas.push_back({&node, here.offset});
  node.holds[here.offset] = object;
}

Result<Mounted> Master::handle(const Unmount& m, Time now) {
  if (members_.find(m.node, m.generation) != nullptr) drop_node(m.node, now);
  finish(now);
  return Mounted{epoch_, nodes(now)};
}

void Master::handle(const Heartbeat& m, Time now, Done<Beat> done) {
  Member* node = members_.find(m.node, m.generation);
  if (node == nullptr) return done(Beat{epoch_, static_cast<uint8_t>(BeatStatus::kRemount), {}, 0});
  members_.beat(*node, m, now, std::move(done));
  finish(now);
}

Result<rpc::Empty> Master::handle(const ReportNode& m, Time now) {
  if (members_.find(m.node, m.generation) != nullptr) members_.liveness().accuse(m.node, now);
  return rpc::Empty{};
}

void Master::drop_node(const NodeId& name, Time now) {
  const std::unique_ptr<Member> node = members_.take(name);
  if (node == nullptr) return;
  const auto holds = std::move(node->holds);
  node->holds.clear();
  for (const auto& [offset, object] : holds) {
    std::erase_if(object->replicas, [&](const Replica& r) { return r.node == node.get(); });
    if (object->replicas.empty() && object->recording == 0) take(*object);
  }
  for (auto& pending : node->orders) pending.done(false, now);
  if (node->beat) node->beat(Beat{epoch_, static_cast<uint8_t>(BeatStatus::kRemount), {}, 0});
  room_changed_ = true;
}

}  // namespace mc::store
