#include "store/metadata/members.h"

#include <algorithm>
#include <functional>

#include "store/metadata/removals.h"

namespace mc::store {
namespace {

constexpr uint64_t kOffsetMax = uint64_t{1} << 48;
constexpr uint64_t kCapacityMax = (Allocator::kPagesMax - 1) * kPage;
constexpr uint32_t kHoldMaxMs = 60'000;
constexpr size_t kAddressMax = 280, kRegionsMax = 64;

Result<> check_layout(const Mount& m) {
  const Layout& l = m.layout;
  if (l.more.size() >= kRegionsMax)
    return fail(Code::kInvalid, "node %s: %zu segments: want at most %zu",
                escape(m.node.name).c_str(), l.more.size() + 1, kRegionsMax);
  std::vector<Region> all{{l.data, l.capacity, l.guards}};
  all.insert(all.end(), l.more.begin(), l.more.end());
  uint64_t after = 0;  // end of the previous segment
  for (const Region& r : all) {
    const bool sane = r.capacity > 0 && r.capacity <= kCapacityMax && r.capacity % kPage == 0 &&
                      r.data <= kOffsetMax && r.guards <= kOffsetMax && r.guards % 8 == 0 &&
                      r.data >= after && (r.data - l.data) % kPage == 0 &&
                      r.end() - l.data <= kCapacityMax;
    const uint64_t guard_bytes = r.capacity / kPage * 8;
    if (!sane || (r.guards < r.end() && r.data < r.guards + guard_bytes))
      return fail(
          Code::kInvalid, "segment of node %s: data %llu+%llu, guards at %llu: not a usable layout",
          escape(m.node.name).c_str(), static_cast<unsigned long long>(r.data),
          static_cast<unsigned long long>(r.capacity), static_cast<unsigned long long>(r.guards));
    after = r.end();
  }
  return {};
}

// Reserves the gaps between segments.
Result<> wall_off(Member& node) {
  uint64_t end = node.layout.data + node.layout.capacity;
  for (const Region& r : node.layout.more) {
    if (r.data > end) MC_TRY_(node.space.wall(end - node.layout.data, r.data - end));
    end = r.end();
  }
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
                escape(mount.node.name).c_str(), mount.node.control.size());
  if (!mount.node.generation)
    return fail(Code::kInvalid, "node %s: no generation", escape(mount.node.name).c_str());
  MC_TRY_(liveness_.heard(mount.node.name, ++mounts_, now));
  auto& slot = members_[mount.node.name];
  MC_CHECK(slot == nullptr);
  slot = std::make_unique<Member>(mount.node, mount.layout);
  MC_TRY_(wall_off(*slot));
  slot->mount = mounts_;
  slot->host = mount.host.substr(0, kAddressMax);
  slot->domain = mount.domain.substr(0, kAddressMax);
  slot->release = mount.release.build.substr(0, kAddressMax);
  return slot.get();
}

std::unique_ptr<Member> Members::take(const NodeId& name) {
  const auto it = members_.find(name);
  if (it == members_.end()) return nullptr;
  auto member = std::move(it->second);
  members_.erase(it);
  liveness_.forget(name);
  if (counts(*member)) count(*member, false);
  member->ready = false;
  member->gone = true;
  std::erase(untold_, member.get());
  held_beats_.erase({member->beat_until, member.get()});
  return member;
}

void Members::fail_orders(Member& node, Time now) {
  auto orders = std::move(node.orders);
  node.orders.clear();
  for (PendingOrder& pending : std::exchange(node.unfenced, {}))
    orders.push_back(std::move(pending));
  for (PendingOrder& pending : orders) order_done_(node, pending, false, now);
}

void Members::heard(const Member& node, Time now) {
  MC_CHECK(liveness_.heard(node.ref.name, node.mount, now).has_value());
}

void Members::count(Member& node, bool in) {
  if (in)
    ready_.push_back(&node);
  else
    std::erase(ready_, &node);
  const auto add = [in](uint64_t& sum, uint64_t n) { sum = in ? sum + n : sum - n; };
  add(capacity_, node.space.capacity());
  add(used_, node.space.used());
  add(releasing_, node.releasing);
}

void Members::ready(Member& node, Time now) {
  if (node.ready) return;
  node.space.seal();
  node.ready = true;
  node.ready_since = now;
  if (counts(node)) count(node, true);
}

void Members::drain(Member& node, bool on) {
  if (node.draining == on) return;
  if (counts(node)) count(node, false);
  node.draining = on;
  if (counts(node)) count(node, true);
}

std::optional<Replica> Members::place(uint64_t bytes, std::span<const Replica> used,
                                      const PlacementRequest& request, Time now) {
  // Prefer one range on any node to several pieces on the best node, and these to one range on a
  // node that the writer does not reach.
  const bool fallback = !request.avoid.empty() && used.empty();
  for (size_t turn = 0; turn < (fallback ? 4 : 2); ++turn) {
    const size_t pieces = turn % 2 == 0 ? 1 : kExtentsMax;
    Replica out;
    const auto attempt = [&](Member& node) {
      if (!healthy(node, now)) return false;
      if (turn < 2 && std::ranges::find(request.avoid, node.ref.name) != request.avoid.end())
        return false;
      const Id range = node.space.allocate(bytes, kNoId, pieces);
      if (range == kNoId) return false;
      out = {&node, range, {}};
      return true;
    };
    // By reference: std::function would allocate so large a capture.
    if (!place_by(placement_, ready_, used, request, now, random_, std::ref(attempt))) continue;
    used_ += out.node->space.rounded(bytes);
    ++out.node->objects;
    return out;
  }
  return std::nullopt;
}

void Members::unplace(const Replica& replica) {
  Member& node = *replica.node;
  --node.objects;
  const uint64_t before = node.space.used();
  node.space.free(replica.range);
  if (counts(node)) used_ -= before - node.space.used();
}

namespace {
uint64_t span_of(const Member& node, Id range) {
  uint64_t bytes = 0;
  for (; range != kNoId; range = node.space.next(range)) bytes += node.space.bytes(range);
  return bytes;
}
}  // namespace

void Members::expect(Member& node, Id range, bool in) {
  const uint64_t span = span_of(node, range);
  const auto add = [&](uint64_t& sum) { sum = in ? sum + span : sum - span; };
  add(node.releasing);
  if (counts(node)) add(releasing_);
}

void Members::releasing(Member& node, Id range) {
  node.space.set_owner(range, kNoId);
  --node.objects;
  expect(node, range, true);
}

void Members::released(Member& node, Id range) {
  expect(node, range, false);
  ++node.objects;
  unplace({&node, range, {}});
}

// Orders are large. For hundreds at a time malloc and free would be most of the work.
std::shared_ptr<Order> Members::fresh_order() {
  if (spare_.empty()) return std::make_shared<Order>();
  auto out = std::move(spare_.back());
  spare_.pop_back();
  return out;
}

void Members::keep(std::shared_ptr<Order> order) {
  constexpr size_t kMost = 1024;
  if (spare_.size() >= kMost || order.use_count() > 1) return;
  ObjectKey key = std::move(order->record.key);  // keeps its memory
  key.clear();
  *order = Order{};
  order->record.key = std::move(key);
  spare_.push_back(std::move(order));
}

Order& Members::order(Member& node, OrderKind kind, Generation fence, PendingOrder about) {
  about.order = fresh_order();
  Order& out = *about.order;
  out.seq = node.next_seq++;
  out.kind = static_cast<uint8_t>(kind);
  out.fence = fence;
  node.orders.push_back(std::move(about));
  if (std::exchange(node.told, false)) untold_.push_back(&node);
  return out;
}

void Members::beat(Member& node, const Heartbeat& heartbeat, Time now, Done<HeartbeatReply> done) {
  heard(node, now);
  std::vector<PendingOrder> carried_out = std::move(carried_out_);
  const auto unfenced = [&](const PendingOrder& pending) {
    return pending.range != kNoId &&
           std::binary_search(heartbeat.unfenced.begin(), heartbeat.unfenced.end(),
                              pending.order->seq);
  };
  // One that was sent before the order was carried out, and comes late, cannot know of it.
  const auto stays = [&](const PendingOrder& pending) {
    return pending.order->seq > heartbeat.done || unfenced(pending);
  };
  const auto fenced = std::stable_partition(node.unfenced.begin(), node.unfenced.end(), stays);
  for (auto it = fenced; it != node.unfenced.end(); ++it) {
    expect(node, it->range, true);
    carried_out.push_back(std::move(*it));
  }
  node.unfenced.erase(fenced, node.unfenced.end());
  std::vector<RemovalRef> gone;  // that need not wait for the object's range
  while (!node.orders.empty() && node.orders.front().order->seq <= heartbeat.done) {
    PendingOrder& pending = node.orders.front();
    if (unfenced(pending)) {
      expect(node, pending.range, false);  // nothing comes of it soon
      gone.push_back(std::exchange(pending.removal, {}));
      node.unfenced.push_back(std::move(pending));
    } else {
      carried_out.push_back(std::move(pending));
    }
    node.orders.pop_front();
  }
  held_beats_.erase({node.beat_until, &node});
  node.beat = std::move(done);  // its sender has given up an older one
  node.beat_until = now + std::chrono::milliseconds(std::min(heartbeat.hold_ms, kHoldMaxMs));
  held_beats_.emplace(node.beat_until, &node);
  if (!node.orders.empty() && std::exchange(node.told, false)) untold_.push_back(&node);
  for (const RemovalRef& removal : gone)
    if (removal) removal->decided();
  for (PendingOrder& pending : carried_out) {
    order_done_(node, pending, true, now);
    keep(std::move(pending.order));
  }
  carried_out.clear();
  carried_out_ = std::move(carried_out);
}

void Members::answer(Member& node, uint64_t epoch, uint64_t nodes) {
  HeartbeatReply reply;
  reply.epoch = epoch;
  reply.nodes = nodes;
  const size_t n = std::min(node.orders.size(), kOrdersMax);
  reply.orders.reserve(n);
  for (size_t i = 0; i < n; ++i) reply.orders.push_back({node.orders[i].order});
  held_beats_.erase({node.beat_until, &node});
  node.beat_until = Time::max();
  const Done<HeartbeatReply> done = std::exchange(node.beat, nullptr);
  done(std::move(reply));
}

void Members::answer_beats(Time now, uint64_t epoch, uint64_t nodes) {
  for (Member* node : std::exchange(untold_, {})) {
    node->told = true;  // without a held heartbeat: the next one carries them
    if (node->beat) answer(*node, epoch, nodes);
  }
  while (!held_beats_.empty() && held_beats_.begin()->first <= now)
    answer(*held_beats_.begin()->second, epoch, nodes);
}

uint64_t Members::largest() const {
  uint64_t bytes = 0;
  for (const Member* node : ready_) bytes = std::max(bytes, node->space.capacity());
  return bytes;
}

uint64_t Members::releasing(Time now) const {
  uint64_t bytes = 0;
  for (const Member* node : ready_)
    if (healthy(*node, now)) bytes += node->releasing;
  return bytes;
}

uint64_t Members::memory() const {
  uint64_t bytes = 0;
  for (const auto& [name, node] : members_) bytes += sizeof(Member) + node->space.memory();
  return bytes;
}

Time Members::deadline() const {
  const Time beat = held_beats_.empty() ? Time::max() : held_beats_.begin()->first;
  return std::min(liveness_.deadline(), beat);
}

}  // namespace mc::store
