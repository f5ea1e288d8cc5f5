// A Master whose nodes are only directories, for tests. Time is a value; pump() delivers orders
// until none are left.
#pragma once
#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/master/master.h"
#include "store/node/directory.h"

namespace mc::store {

using namespace std::chrono_literals;

inline const Time t0{1000s};
inline constexpr uint64_t kEpoch = 1'700'000'000;

struct FakeNode {
  FakeNode(NodeId name, uint64_t capacity, uint64_t generation)
      : ref{std::move(name), "127.0.0.1:1", Generation{generation}},
        layout{1 * kMiB, capacity, 0},
        directory(layout) {}
  NodeRef ref;
  Layout layout;
  Directory directory;
  uint64_t done = 0, epoch_seen = 0, nodes_seen = 0;
  bool waiting = false;  // a heartbeat of it is held
  bool tier = false;     // it says that its disk follows
  std::optional<HeartbeatReply> inbox;
  uint32_t remounts = 0;
  bool still_writes = false;          // into what it has to forget
  std::vector<uint64_t> unfenced;     // orders of such ranges
  std::vector<Extent> still_written;  // told when it mounts
};

struct FakeCluster {
  // A master that takes what it does not know for absent, unless it is to wait for its nodes.
  explicit FakeCluster(MasterOptions options = {}, uint64_t epoch = kEpoch,
                       Duration rebuild_wait = 0s)
      : options_used(options) {
    options_used.rebuild_wait = rebuild_wait;
    master = std::make_unique<Master>(options_used, epoch, 1, t0);
  }

  MasterOptions options_used;
  std::unique_ptr<Master> master;
  std::map<NodeId, std::unique_ptr<FakeNode>> nodes;
  Time now = t0;
  bool copies_succeed = true;  // at once; else they never end by themselves
  std::vector<uint64_t> copies_open;
  std::vector<std::pair<NodeId, uint64_t>> checks;  // orders of them, not answered here

  FakeNode& add(const NodeId& name, uint64_t capacity, uint64_t generation = 7) {
    return add(name, capacity, generation, false);
  }
  FakeNode& add(const NodeId& name, uint64_t capacity, uint64_t generation, bool tier) {
    nodes[name] = std::make_unique<FakeNode>(name, capacity, generation);
    nodes[name]->tier = tier;
    mount(*nodes[name]);
    return *nodes[name];
  }
  void mount(FakeNode& node) {
    const auto mounted =
        master->handle(Mount{node.ref, node.layout, node.epoch_seen, node.nodes_seen}, now);
    REQUIRE(mounted);
    node.epoch_seen = mounted->epoch;
    node.done = 0;
    node.inbox.reset();
    node.waiting = false;
    Inventory inventory{node.ref.name, node.ref.generation, node.directory.page(0, true, 4096),
                        true};
    inventory.tier = node.tier;
    node.directory.tell_dead(inventory);
    node.unfenced.clear();
    inventory.unfenced = node.still_written;
    const auto whole = master->handle(inventory, now);
    REQUIRE(whole);
    node.nodes_seen = whole->nodes;
    beat(node);
  }
  void beat(FakeNode& node) {
    node.waiting = true;
    // By name: a node that was taken out of the cluster may still be answered.
    const Heartbeat heartbeat{node.ref.name, node.ref.generation, node.done, 1000, node.unfenced};
    master->handle(heartbeat, now,
                   [this, name = node.ref.name,
                    generation = node.ref.generation](const Result<HeartbeatReply>& reply) {
                     REQUIRE(reply);
                     const auto it = nodes.find(name);
                     if (it == nodes.end() || it->second->ref.generation != generation) return;
                     it->second->inbox = *reply;
                     it->second->waiting = false;
                   });
  }
  void pump() {
    for (bool busy = true; busy;) {
      busy = false;
      for (auto& [name, node] : nodes) {
        if (!node->inbox) continue;
        const HeartbeatReply b = *std::exchange(node->inbox, std::nullopt);
        busy = true;
        if (b.status == static_cast<uint8_t>(BeatStatus::kRemount)) {
          ++node->remounts;
          mount(*node);
          continue;
        }
        node->epoch_seen = std::max(node->epoch_seen, b.epoch);
        node->nodes_seen = b.nodes;
        std::vector<uint64_t> copied;
        for (const Order& o : b.orders) {
          REQUIRE(node->directory.carry_out(o));
          node->done = o.seq;
          if (o.kind == static_cast<uint8_t>(OrderKind::kForget) && node->still_writes)
            node->unfenced.push_back(o.seq);
          if (o.kind == static_cast<uint8_t>(OrderKind::kCopy)) copied.push_back(o.task);
          if (o.kind == static_cast<uint8_t>(OrderKind::kCheck)) checks.emplace_back(name, o.task);
        }
        beat(*node);
        for (const uint64_t task : copied) {
          if (!copies_succeed)
            copies_open.push_back(task);
          else
            (void)master->handle(TaskDone{node->ref.name, node->ref.generation, task, {}}, now);
        }
      }
    }
  }
  // Moves time on, ticking at each deadline on the way; nodes named `silent` do not beat.
  void run_until(Time until, const NodeId& silent = {}) {
    while (master->deadline() <= until) {
      now = std::max(now, master->deadline());
      master->tick(now);
      if (!silent.empty() && nodes.count(silent)) nodes[silent]->inbox.reset();
      pump();
    }
    now = until;
  }

  PutGrant grant(const ObjectKey& key, uint64_t bytes, uint32_t replicas = 1) {
    PutStart m;
    m.replicas = replicas;
    return grant(std::move(m), key, bytes);
  }
  PutGrant grant(PutStart m, const ObjectKey& key, uint64_t bytes, Generation tried = {}) {
    m.items = {{key, bytes, tried}};
    std::optional<PutStarted> reply;
    master->handle(m, now, [&](const Result<PutStarted>& r) {
      REQUIRE(r);
      reply = *r;
    });
    pump();
    if (!reply) run_until(now + options_used.put_wait);
    REQUIRE(reply);
    return reply->items[0];
  }
  Outcome end(const ObjectKey& key, Generation generation, uint64_t checksum = 1,
              const std::string& tenant = {}) {
    std::optional<Outcomes> reply;
    master->handle(PutEnd{{{key, generation, checksum}}, tenant}, now,
                   [&](const Result<Outcomes>& r) {
                     REQUIRE(r);
                     reply = *r;
                   });
    pump();
    REQUIRE(reply);
    return reply->items[0];
  }
  Outcome revoke(const ObjectKey& key, Generation generation) {
    auto reply = master->handle(PutRevoke{{{key, generation, 0}}}, now);
    REQUIRE(reply);
    pump();
    return reply->items[0];
  }
  Code put(const ObjectKey& key, uint64_t bytes, uint64_t checksum = 1, uint32_t replicas = 1) {
    const PutGrant g = grant(key, bytes, replicas);
    if (!g.outcome.ok()) return static_cast<Code>(g.outcome.code);
    const Outcome o = end(key, g.generation, checksum);
    return o.ok() ? Code{} : static_cast<Code>(o.code);
  }
  Code put(const PutStart& config, const ObjectKey& key, uint64_t bytes, uint64_t checksum = 1) {
    const PutGrant g = grant(config, key, bytes);
    if (!g.outcome.ok()) return static_cast<Code>(g.outcome.code);
    const Outcome o = end(key, g.generation, checksum, config.tenant);
    return o.ok() ? Code{} : static_cast<Code>(o.code);
  }
  // Of GetReplicas, Exists and List: the answer, after time went on if it is held.
  template <class M>
  Result<typename M::Reply> look(const M& message) {
    auto answer = std::make_shared<std::optional<Result<typename M::Reply>>>();
    master->handle(message, now,
                   [answer](const Result<typename M::Reply>& r) { answer->emplace(r); });
    if (!*answer) run_until(now + 100ms);
    REQUIRE(*answer);
    return **answer;
  }
  Located get(const ObjectKey& key) {
    std::optional<Located> at;
    master->handle(GetReplicas{{key}, 0}, now, [&](const Result<Replicas>& r) {
      REQUIRE(r);
      at = r->items[0];
    });
    REQUIRE(at);
    return *at;
  }
  bool has(const ObjectKey& key) { return look(Exists{{key}})->items[0] == 1; }
  std::optional<Outcome> remove(const ObjectKey& key, bool force = false) {
    auto answer = std::make_shared<std::optional<Outcome>>();
    master->handle(Remove{{key}, force}, now,
                   [answer](const Result<Outcomes>& r) { *answer = r->items[0]; });
    pump();
    return *answer;
  }
  // Nothing: a holder has not forgotten something yet.
  std::optional<RemovePrefixed> remove(const RemovePrefix& message) {
    auto answer = std::make_shared<std::optional<RemovePrefixed>>();
    master->handle(message, now, [answer](const Result<RemovePrefixed>& r) {
      REQUIRE(r);
      *answer = *r;
    });
    pump();
    return *answer;
  }
  std::vector<ObjectInfo> list() { return look(List{"", "", kListMax})->items; }
  ClusterStat stat() { return master->handle(Stat{}, now); }
  // kill -9 of the master: everything it knew is gone, the nodes notice by their next heartbeat;
  // `late` ones not yet.
  void restart_master(uint64_t epoch, const NodeId& late = {}) {
    master.reset();  // its held heartbeats are dropped, not answered
    master = std::make_unique<Master>(options_used, epoch, 2, now);
    for (auto& [name, node] : nodes) {
      node->inbox.reset();
      if (name != late) beat(*node);
    }
    pump();
  }
};

inline constexpr Code kDone{};

}  // namespace mc::store
