#include "store/members.h"

#include <algorithm>

namespace mc::store {
namespace {

constexpr uint64_t kCapacityMax = uint64_t{1} << 48;
constexpr uint32_t kHoldMaxMs = 60'000;
constexpr size_t kAddressMax = 280;

Result<> check_layout(const Mount& m) {
  const Layout& l = m.layout;
  const bool sane = l.capacity > 0 && l.capacity <= kCapacityMax && l.capacity % kPage == 0 &&
                    l.data <= kCapacityMax && l.guards <= kCapacityMax && l.guards % 8 == 0;
  const uint64_t guard_bytes = l.capacity / kPage * 8;
  if (!sane || (l.guards < l.data + l.capacity && l.data < l.guards + guard_bytes))
    return fail(
        Code::kInvalid, "segment of node %s: data %llu+%llu, guards at %llu: not a usable layout",
        shown(m.node.name).c_str(), static_cast<unsigned long long>(l.data),
        static_cast<unsigned long long>(l.capacity), static_cast<unsigned long long>(l.guards));
  return {};
}

}  // namespace

Member* Members::find(const NodeId& name) {
  const auto it = members_.find(name);
  return it == members_.end() ? nullptr : it->second.get();
}

Member* Members::find(const NodeId& name, Generation generation) {
  Member* member = find(name);
  return member != nullptr && member->ref.generation == generation ? member : nullptr;
}

Member* Members::find_mount(const NodeId& name, uint64_t mount) {
  Member* member = find(name);
  return member != nullptr && member->mount == mount ? member : nullptr;
}

Result<Member*> Members::add(const Mount& mount, Time now) {
  MC_TRY_(check_node_id(mount.node.name));
  MC_TRY_(check_layout(mount));
  if (mount.node.control.empty() || mount.node.control.size() > kAddressMax)
    return fail(Code::kInvalid, "node %s: control address of %zu bytes",
                shown(mount.node.name).c_str(), mount.node.control.size());
  if (!mount.node.generation)
    return fail(Code::kInvalid, "node %s: no generation", shown(mount.node.name).c_str());
  MC_TRY_(liveness_.heard(mount.node.name, ++mounts_, now));
  auto& slot = members_[mount.node.name];
  MC_CHECK(slot == nullptr);
  slot = std::make_unique<Member>(mount.node, mount.layout);
  slot->mount = mounts_;
  return slot.get();
}

std::unique_ptr<Member> Members::take(const NodeId& name) {
  const auto it = members_.find(name);
  if (it == members_.end()) return nullptr;
  auto member = std::move(it->second);
  members_.erase(it);
  liveness_.forget(name);
  if (member->ready) capacity_ -= member->space.capacity();
  ready_.erase(std::remove(ready_.begin(), ready_.end(), member.get()), ready_.end());
  return member;
}

void Members::heard(const Member& node, Time now) {
  MC_CHECK(liveness_.heard(node.ref.name, node.mount, now).has_value());
}

void Members::ready(Member& node) {
  if (node.ready) return;
  node.ready = true;
  ready_.push_back(&node);
  capacity_ += node.space.capacity();
}

std::optional<Replica> Members::place(uint64_t bytes, const std::vector<Replica>& used,
                                      const NodeId& prefer, Time now) {
  const auto try_node = [&](Member* node) -> std::optional<Replica> {
    if (!node->ready || liveness_.suspect(node->ref.name, now)) return std::nullopt;
    if (std::any_of(used.begin(), used.end(), [&](const Replica& r) { return r.node == node; }))
      return std::nullopt;
    const auto offset = node->space.allocate(bytes);
    if (!offset) return std::nullopt;
    return Replica{node, *offset};
  };
  if (ready_.empty()) return std::nullopt;
  if (Member* node = prefer.empty() ? nullptr : find(prefer))
    if (auto at = try_node(node)) return at;
  const auto free_part = [](const Member* node) {
    return 1.0 -
           static_cast<double>(node->space.used()) / static_cast<double>(node->space.capacity());
  };
  Member* a = ready_[random_.below(ready_.size())];
  Member* b = ready_[random_.below(ready_.size())];
  if (free_part(b) > free_part(a)) std::swap(a, b);
  if (auto at = try_node(a)) return at;
  if (auto at = try_node(b)) return at;
  for (Member* node : ready_)
    if (auto at = try_node(node)) return at;
  return std::nullopt;
}

void Members::order(Member& node, OrderKind kind, const Record& record, Generation fence,
                    std::function<void(bool, Time)> done) {
  Order order{node.next_seq++, static_cast<uint8_t>(kind), record, fence};
  order.record.offset += node.layout.data;
  node.orders.push_back({std::move(order), std::move(done)});
}

void Members::beat(Member& node, const Heartbeat& heartbeat, Time now, Done<Beat> done) {
  heard(node, now);
  std::vector<PendingOrder> carried_out;
  while (!node.orders.empty() && node.orders.front().order.seq <= heartbeat.done) {
    carried_out.push_back(std::move(node.orders.front()));
    node.orders.pop_front();
  }
  node.beat = std::move(done);  // an older one was given up by its sender
  node.beat_until = now + std::chrono::milliseconds(std::min(heartbeat.hold_ms, kHoldMaxMs));
  for (auto& pending : carried_out) pending.done(true, now);
}

void Members::answer_beats(Time now, uint64_t epoch, uint64_t nodes) {
  for (auto& [name, node] : members_) {
    if (!node->beat || (node->orders.empty() && now < node->beat_until)) continue;
    Beat reply;
    reply.epoch = epoch;
    reply.nodes = nodes;
    const size_t n = std::min(node->orders.size(), kOrdersMax);
    for (size_t i = 0; i < n; ++i) reply.orders.push_back(node->orders[i].order);
    const Done<Beat> done = std::exchange(node->beat, nullptr);
    node->beat_until = Time::max();
    done(reply);
  }
}

uint64_t Members::largest() const {
  uint64_t bytes = 0;
  for (const Member* node : ready_) bytes = std::max(bytes, node->space.capacity());
  return bytes;
}

uint64_t Members::used() const {
  uint64_t bytes = 0;
  for (const Member* node : ready_) bytes += node->space.used() - node->releasing;
  return bytes;
}

uint64_t Members::releasing(Time now) const {
  uint64_t bytes = 0;
  for (const Member* node : ready_)
    if (!liveness_.suspect(node->ref.name, now)) bytes += node->releasing;
  return bytes;
}

Time Members::deadline() const {
  Time when = liveness_.deadline();
  for (const auto& [name, node] : members_)
    if (node->beat) when = std::min(when, node->beat_until);
  return when;
}

}  // namespace mc::store
