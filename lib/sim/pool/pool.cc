#include "sim/pool/pool.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace mc::sim {
namespace {

constexpr Duration kNeverSilent = std::chrono::hours(100'000);
constexpr uint64_t kEpoch = 1, kSeed = 1;
constexpr const char* kAddress = "127.0.0.1:1";  // nobody calls it
constexpr uint64_t kBlockBytes = store::kPage;   // all blocks are equal: only how many counts
constexpr uint64_t kPoolEventsMax = 1 << 20;     // of one call
constexpr uint32_t kHoldMs = 600'000;
constexpr size_t kBlocksMax = size_t{1} << 26;

// The live defaults. Nodes are never silent here: the master hears at once of one that fails.
store::MasterOptions options() {
  store::MasterOptions o;
  o.suspect_after = o.client_ttl = kNeverSilent;
  o.rebuild_wait = Duration{0};
  o.slow_start = Duration{0};
  o.event_log = kPoolEventsMax;
  return o;
}

std::string name_of(uint32_t machine) { return std::to_string(machine); }

ObjectKey key_of(const BlockHash& hash) {
  return strf("%016llx", static_cast<unsigned long long>(hash.tag()));
}

uint64_t tag_of(const ObjectKey& key) {
  uint64_t tag = 0;
  std::from_chars(key.data(), key.data() + key.size(), tag, 16);
  return tag;
}

std::vector<uint32_t> numbers(const std::vector<store::NodeRef>& nodes) {
  std::vector<uint32_t> out;
  for (const store::NodeRef& n : nodes) out.push_back(static_cast<uint32_t>(std::stoul(n.name)));
  return out;
}

uint8_t class_of(trace::CacheClass of) {
  switch (of) {
    case trace::CacheClass::kNormal: break;
    case trace::CacheClass::kEphemeral: return static_cast<uint8_t>(store::ObjectClass::kEphemeral);
    case trace::CacheClass::kContext: return static_cast<uint8_t>(store::ObjectClass::kContext);
  }
  return static_cast<uint8_t>(store::ObjectClass::kNormal);
}

}  // namespace

Pool::Pool(Time now) : master_(options(), kEpoch, kSeed, now), index_(kBlocksMax) {}

void Pool::mount(uint32_t machine, uint64_t blocks, Time now) {
  if (blocks == 0 || mounted(machine)) return;
  Node& n = nodes_[machine];
  n.generation = Generation{++mounts_};
  store::Mount mount;
  mount.node = {name_of(machine), kAddress, n.generation};
  const uint64_t bytes = blocks * kBlockBytes;
  mount.layout = {.data = 0, .capacity = bytes, .guards = bytes};
  auto mounted = master_.handle(mount, now);
  while (!mounted && mounted.error().code == Code::kBusy) {  // what it had is being given up
    master_.tick(now);
    mounted = master_.handle(mount, now);
  }
  MC_CHECK(mounted.has_value());
  store::Inventory nothing;
  nothing.node = mount.node.name;
  nothing.generation = n.generation;
  nothing.last = true;
  MC_CHECK(master_.handle(nothing, now).has_value());
  beat(machine, now);
  settle(now);
}

void Pool::unmount(uint32_t machine, Time now) {
  const auto it = nodes_.find(machine);
  if (it == nodes_.end()) return;
  const store::Unmount gone{name_of(machine), it->second.generation, false};
  nodes_.erase(it);
  MC_CHECK(master_.handle(gone, now).has_value());
  settle(now);
}

// One heartbeat of each node waits at the master for orders.
void Pool::beat(uint32_t machine, Time now) {
  const Node& n = nodes_.at(machine);
  const store::Heartbeat heartbeat{name_of(machine), n.generation, n.done, kHoldMs, {}};
  master_.handle(heartbeat, now,
                 [this, machine, of = n.generation](const Result<store::HeartbeatReply>& reply) {
                   const auto it = nodes_.find(machine);
                   if (!reply || it == nodes_.end() || it->second.generation != of) return;
                   it->second.reply = *reply;
                 });
}

// The nodes carry out what they were ordered, until nothing is left; the view follows.
void Pool::settle(Time now) {
  for (bool busy = true; busy;) {
    busy = false;
    for (auto& [machine, n] : nodes_) {
      if (!n.reply) continue;
      const store::HeartbeatReply reply = *std::exchange(n.reply, std::nullopt);
      if (!reply.orders.empty()) n.done = reply.orders.back()->seq;
      beat(machine, now);
      busy = true;
    }
  }
  bool gap = false;
  for (const store::Event& e : master_.events().since(seen_, kPoolEventsMax, &gap)) note(e);
  MC_CHECK(!gap);
  seen_ = master_.events().next();
}

void Pool::note(const store::Event& e) {
  sched::PoolPlace place{};
  if (e.kind == static_cast<uint8_t>(store::EventKind::kJoined)) return;
  if (e.kind != static_cast<uint8_t>(store::EventKind::kRemoved)) {
    const auto machine = static_cast<uint32_t>(std::stoul(e.nodes));
    place = {sched::PoolTier::kMemory, static_cast<uint16_t>(machine + 1)};
  }
  index_.put(tag_of(e.key), place);
}

std::vector<uint32_t> Pool::find(std::span<const BlockHash> hashes, Time now) {
  store::GetReplicas ask;
  for (const BlockHash& h : hashes.first(std::min(hashes.size(), store::kBatchMax)))
    ask.keys.push_back(key_of(h));
  std::vector<uint32_t> out;
  bool answered = false;
  master_.handle(ask, now, [&](const Result<store::Replicas>& answer) {
    answered = true;
    if (!answer) return;
    const std::vector<uint32_t> machines = numbers(answer->nodes);
    for (const store::Located& l : answer->items) {
      if (!l.outcome.ok() || l.places.empty()) return;
      out.push_back(machines[l.places.front().node]);
    }
  });
  MC_CHECK(answered);  // it knows all nodes from the start, and so holds no answer
  settle(now);
  return out;
}

void Pool::put(uint64_t put, std::span<const BlockHash> hashes, trace::CacheClass of, Time now) {
  store::PutStart start;
  start.cls = class_of(of);
  for (const BlockHash& h : hashes.first(std::min(hashes.size(), store::kBatchMax)))
    start.items.push_back({key_of(h), kBlockBytes});
  master_.handle(start, now, [this, put, start](const Result<store::PutStarted>& r) {
    Granted& answer = granted_.emplace_back();
    answer.put = put;
    if (!r) return;
    const std::vector<uint32_t> machines = numbers(r->nodes);
    for (size_t i = 0; i < r->items.size(); ++i) {
      const store::PutGrant& g = r->items[i];
      if (!g.outcome.ok() || g.places.empty()) continue;
      answer.grants.push_back({{start.items[i].key, g.generation, 1},  // any checksum
                               machines[g.places.front().node]});
    }
  });
  settle(now);
}

void Pool::stored(const std::vector<Grant>& grants, Time now) {
  store::PutEnd end;
  for (const Grant& g : grants) end.items.push_back(g.claim);
  master_.handle(end, now, [](const Result<store::Outcomes>&) {});  // late ones are void
  settle(now);
}

void Pool::given_up(const std::vector<Grant>& grants, Time now) {
  store::PutRevoke revoke;
  for (const Grant& g : grants) revoke.items.push_back(g.claim);
  (void)master_.handle(revoke, now);
  settle(now);
}

void Pool::tick(Time now) {
  master_.tick(now);
  settle(now);
}

}  // namespace mc::sim
