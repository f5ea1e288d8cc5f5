#include "base/random.h"
#include "tests/unit/store/fake_cluster.h"

namespace mc::store {

namespace tasks_test {

namespace {

MasterOptions quick() {
  MasterOptions o;
  o.lease_ttl = 50ms;
  o.slow_start = 0s;
  return o;
}
DrainInfo drain(FakeCluster& c, const NodeId& node, DrainAction action = DrainAction::kQuery) {
  const auto info = c.master->handle(Drain{node, static_cast<uint8_t>(action)}, c.now);
  REQUIRE(info);
  c.pump();
  return *info;
}
NodeId node_of(FakeCluster& c, const ObjectKey& key) {
  std::optional<Replicas> reply;
  c.master->handle(GetReplicas{{key}, 0, {}}, c.now,
                   [&](const Result<Replicas>& r) { reply = *r; });
  REQUIRE(reply);
  REQUIRE(reply->items[0].outcome.ok());
  return reply->nodes[reply->items[0].places[0].node].name;
}

TEST_CASE(
    "a copy counts when its node has the bytes and recorded them, with a generation of its own") {
  FakeCluster c(quick());
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  REQUIRE(c.put("k", 1000, 42) == kDone);
  const auto task = c.master->handle(CopyKey{"k", {}, {}, false, {}}, c.now);
  REQUIRE(task);
  CHECK(c.get("k").places.size() == 1);
  c.pump();
  const Located at = c.get("k");
  REQUIRE(at.places.size() == 2);
  CHECK(at.places[1].generation > at.generation);
  CHECK(c.master->handle(QueryTask{task->task}, c.now)->state == "done");
  for (const char* node : {"a", "b"}) CHECK(c.nodes[node]->directory.objects() == 1);
  c.restart_master(kEpoch + 5);
  CHECK(c.get("k").places.size() == 2);  // told apart from a later put of the key
}

TEST_CASE("a move gives its place back at once, unless someone came to read there") {
  MasterOptions o = quick();
  o.lease_ttl = 10s;
  FakeCluster c(o);
  c.add("a", 64 * kMiB);
  REQUIRE(c.put("k", 1) == kDone);
  REQUIRE(c.put("read", 1) == kDone);
  c.add("b", 64 * kMiB);
  REQUIRE(c.master->handle(CopyKey{"k", "b", {}, true, {}}, c.now));
  REQUIRE(c.master->handle(CopyKey{"read", "b", {}, true, {}}, c.now));
  c.get("read");
  c.run_until(c.now + 500ms);
  CHECK(node_of(c, "k") == "b");
  CHECK(node_of(c, "read") == "b");
  CHECK(c.nodes["a"]->directory.objects() == 1);
  c.run_until(c.now + 10s);
  CHECK(c.nodes["a"]->directory.objects() == 0);
}

TEST_CASE("an object that moves is readable where it was until its lease ends") {
  FakeCluster c(quick());
  c.add("a", 64 * kMiB);
  REQUIRE(c.put("k", 1) == kDone);
  c.add("b", 64 * kMiB);
  c.get("k");
  REQUIRE(c.master->handle(CopyKey{"k", "b", {}, true, {}}, c.now));
  c.pump();
  CHECK(node_of(c, "k") == "b");
  CHECK(c.nodes["a"]->directory.objects() == 1);
  c.run_until(c.now + 100ms);
  CHECK(c.nodes["a"]->directory.objects() == 0);
  CHECK(c.stat().used == kPage);
}

TEST_CASE("a copy that fails leaves nothing behind, whatever happened to the object meanwhile") {
  for (const bool removed : {false, true}) {
    FakeCluster c(quick());
    c.copies_succeed = false;
    c.add("a", 64 * kMiB);
    c.add("b", 64 * kMiB);
    REQUIRE(c.put("k", 1) == kDone);
    const auto task = c.master->handle(CopyKey{"k", {}, {}, false, {}}, c.now);
    REQUIRE(task);
    c.pump();
    REQUIRE(c.copies_open.size() == 1);
    CHECK(c.stat().used == 2 * kPage);
    if (removed) CHECK(c.remove("k", true)->ok());
    for (auto& [name, node] : c.nodes)
      (void)c.master->handle(
          TaskDone{name, node->ref.generation, task->task,
                   removed ? Outcome{} : Outcome{static_cast<uint8_t>(Code::kCorrupt), "bad"}},
          c.now);
    c.pump();
    CHECK(c.stat().used == (removed ? 0 : kPage));
    const auto info = c.master->handle(QueryTask{task->task}, c.now);
    CHECK(info->state == "failed");
    CHECK_FALSE(info->what.empty());
  }
}

TEST_CASE("the order to forget a copy that failed names its tenant") {
  FakeCluster c(quick());
  c.copies_succeed = false;
  c.add("a", 64 * kMiB);
  PutStart m;
  m.tenant = "t";
  REQUIRE(c.put(m, "k", 1) == kDone);
  FakeNode& target = c.add("b", 64 * kMiB);
  const auto task = c.master->handle(CopyKey{"k", {}, {}, false, "t"}, c.now);
  REQUIRE(task);
  c.pump();
  const Outcome bad{static_cast<uint8_t>(Code::kCorrupt), "bad"};
  REQUIRE(c.master->handle(TaskDone{"b", target.ref.generation, task->task, bad}, c.now));
  REQUIRE(target.inbox);
  REQUIRE(target.inbox->orders.size() == 1);
  CHECK(target.inbox->orders[0]->record.key == "k");
  CHECK(target.inbox->orders[0]->record.tenant == "t");
}

TEST_CASE("the number of replicas is changed up by copies and down at once") {
  FakeCluster c(quick());
  for (const char* n : {"a", "b", "c"}) c.add(n, 64 * kMiB);
  REQUIRE(c.put("k", 1) == kDone);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(c.master->handle(ChangeReplicas{"k", 3, {}}, c.now)->state == "running");
    c.pump();
  }
  CHECK(c.master->handle(ChangeReplicas{"k", 3, {}}, c.now)->state == "done");
  CHECK(c.get("k").places.size() == 3);
  REQUIRE(c.master->handle(ChangeReplicas{"k", 1, {}}, c.now));
  CHECK(c.get("k").places.size() == 1);
  c.run_until(c.now + 1s);
  CHECK(c.stat().used == kPage);
}

TEST_CASE("replicas keep within the quota of their tenant, a move needs none of it") {
  MasterOptions o = quick();
  o.tenant_quotas = "t=12KiB";
  FakeCluster c(o);
  for (const char* n : {"a", "b", "c"}) c.add(n, 64 * kMiB);
  PutStart m;
  m.tenant = "t";
  REQUIRE(c.put(m, "k", kPage) == kDone);
  REQUIRE(c.put(m, "other", kPage) == kDone);
  const auto copy = [&](const ObjectKey& key, bool move) {
    return c.master->handle(CopyKey{key, {}, {}, move, "t"}, c.now);
  };
  c.copies_succeed = false;
  const auto first = copy("k", false), second = copy("other", false);  // there is room for one
  REQUIRE(first);
  REQUIRE(second);
  c.pump();
  for (const uint64_t task : c.copies_open)
    for (auto& [name, node] : c.nodes)
      (void)c.master->handle(TaskDone{name, node->ref.generation, task, {}}, c.now);
  c.pump();
  CHECK(c.master->handle(QueryTask{first->task}, c.now)->state == "done");
  const auto info = c.master->handle(QueryTask{second->task}, c.now);
  CHECK(info->state == "failed");
  CHECK(info->what.find("tenant 't' is at its quota") == 0);
  CHECK(c.stat().used == 3 * kPage);
  c.copies_succeed = true;
  const auto refused = c.master->handle(ChangeReplicas{"k", 3, "t"}, c.now);
  REQUIRE(!refused);
  CHECK(refused.error().code == Code::kNoSpace);
  CHECK(refused.error().what.find("tenant 't' is at its quota") == 0);
  const auto moved = copy("other", true);
  REQUIRE(moved);
  c.pump();
  CHECK(c.master->handle(QueryTask{moved->task}, c.now)->state == "done");
}

TEST_CASE("a drain ends although objects are leased, pinned, replicated or being written") {
  FakeCluster c(quick());
  c.add("a", 4 * kMiB);
  PutStart pinned;
  pinned.pin = static_cast<uint8_t>(Pin::kHard);
  for (int i = 0; i < 100; ++i) REQUIRE(c.put("k" + std::to_string(i), 5000) == kDone);
  REQUIRE(c.put(pinned, "pinned", 1) == kDone);
  const PutGrant open = c.grant("open", 1);
  c.add("b", 4 * kMiB);
  REQUIRE(c.put("both", 1, 1, 2) == kDone);
  c.get("k5");
  DrainInfo info = drain(c, "a", DrainAction::kStart);
  CHECK(info.state == "running");
  CHECK(info.objects_left == 103);
  c.run_until(c.now + 500ms);
  info = drain(c, "a");
  CHECK(info.objects_left == 1);  // it is being written
  CHECK(c.end("open", open.generation).ok());
  c.run_until(c.now + 500ms);
  info = drain(c, "a");
  CHECK(info.state == "drained");
  CHECK(info.moved == 103);
  for (int i = 0; i < 100; ++i) CHECK(node_of(c, "k" + std::to_string(i)) == "b");
  CHECK(node_of(c, "pinned") == "b");
  CHECK(node_of(c, "open") == "b");
  CHECK(c.nodes["a"]->directory.objects() == 0);
  CHECK(c.put("new", 1) == kDone);
  CHECK(node_of(c, "new") == "b");
}

TEST_CASE("a drain for which there is no room makes some, or says that it is blocked") {
  MasterOptions options = quick();
  options.pin_share = options.tenant_pin_share = 1;
  FakeCluster c(options);
  c.add("a", 10 * kPage);
  PutStart pinned;
  pinned.pin = static_cast<uint8_t>(Pin::kHard);
  for (int i = 0; i < 6; ++i) REQUIRE(c.put(pinned, "p" + std::to_string(i), 1) == kDone);
  c.add("b", 10 * kPage);
  PutStart on_b;
  on_b.prefer = "b";
  for (int i = 0; i < 9; ++i) REQUIRE(c.put(on_b, "k" + std::to_string(i), 1) == kDone);
  drain(c, "a", DrainAction::kStart);
  c.run_until(c.now + 1s);
  CHECK(drain(c, "a").state == "drained");
  for (int i = 0; i < 6; ++i) CHECK(c.has("p" + std::to_string(i)));
  CHECK(c.stat().evicted_objects >= 5);
  drain(c, "b", DrainAction::kStart);  // a drains already: nowhere to go
  c.run_until(c.now + 1s);
  CHECK(drain(c, "b").state == "blocked");
  CHECK_FALSE(drain(c, "b").why.empty());
  drain(c, "a", DrainAction::kCancel);
  c.run_until(c.now + 1s);
  CHECK(drain(c, "b").state == "drained");
  for (int i = 0; i < 6; ++i) CHECK(c.has("p" + std::to_string(i)));
}

TEST_CASE("a hot object gets another replica, and loses it when it cools down") {
  MasterOptions options = quick();
  options.hot_replicas = 2;
  options.hot_rate = 20;
  FakeCluster c(options);
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  REQUIRE(c.put("hot", 1) == kDone);
  REQUIRE(c.put("cold", 1) == kDone);
  for (int i = 0; i < 400; ++i) {
    c.get("hot");
    c.run_until(c.now + 10ms);
  }
  CHECK(c.get("hot").places.size() == 2);
  CHECK(c.get("cold").places.size() == 1);
  c.run_until(c.now + 30s);
  CHECK(c.get("hot").places.size() == 1);
  CHECK(c.stat().used == 2 * kPage);
}

TEST_CASE("pins are set and lifted, and the next master knows") {
  FakeCluster c(quick());
  c.add("n", 10 * kPage);
  REQUIRE(c.put("k", 1) == kDone);
  const auto pin = [&](Pin p) {
    const auto r = c.master->handle(PinKeys{{"k", "none"}, static_cast<uint8_t>(p), 0, {}}, c.now);
    REQUIRE(r);
    CHECK(r->items[0].ok());
    CHECK(r->items[1].code == static_cast<uint8_t>(Code::kNotFound));
    c.pump();
  };
  pin(Pin::kHard);
  for (int i = 0; i < 20; ++i) REQUIRE(c.put("x" + std::to_string(i), 1) == kDone);
  CHECK(c.has("k"));
  c.restart_master(kEpoch + 5);
  CHECK(c.list()[0].pin == static_cast<uint8_t>(Pin::kHard));
  pin(Pin::kNone);
  for (int i = 0; i < 20; ++i) REQUIRE(c.put("y" + std::to_string(i), 1) == kDone);
  CHECK_FALSE(c.has("k"));
}

TEST_CASE("explain reports a key's state, and the fate of a removed one") {
  FakeCluster c(quick());
  c.add("n", 10 * kPage);
  REQUIRE(c.put("k", 1) == kDone);
  auto why = c.master->handle(Explain{"k", {}}, c.now);
  CHECK(why->state == "stored");
  REQUIRE(why->facts.size() >= 2);
  CHECK(why->facts[1].find("node n") != std::string::npos);
  for (int i = 0; i < 20; ++i) REQUIRE(c.put("x" + std::to_string(i), 1) == kDone);
  why = c.master->handle(Explain{"k", {}}, c.now);
  CHECK(why->state == "not stored");
  REQUIRE(why->events.size() == 2);
  CHECK(why->events[0].reason.find("watermark") != std::string::npos);
  CHECK(why->events[0].nodes == "n");
}

TEST_CASE("all keys of a prefix are removed in parts, those that are leased or pinned are not") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  for (int i = 0; i < 2500; ++i) REQUIRE(c.put("p/" + std::to_string(i), 1) == kDone);
  REQUIRE(c.put("q", 1) == kDone);
  c.get("p/77");
  uint64_t removed = 0, refused = 0, calls = 0;
  RemovePrefix m{"p/", {}, false, {}};
  for (bool more = true; more; ++calls) {
    const auto part = c.remove(m);
    REQUIRE(part);
    removed += part->removed;
    refused += part->refused;
    m.after = part->last;
    more = part->more;
  }
  CHECK(calls == 3);
  CHECK(removed == 2499);
  CHECK(refused == 1);
  CHECK(c.list().size() == 2);
}

// Everything at once: copies, moves, drains, pins, restarts; nothing is lost that should not be,
// and at the end every byte is accounted for.
TEST_CASE(
    "over random histories of copies and drains no acknowledged object of a live node is lost") {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    FakeCluster c(quick());
    for (const char* n : {"a", "b", "c"}) c.add(n, 400 * kPage);
    std::map<ObjectKey, uint64_t> pinned;  // must stay; its checksum
    uint64_t checksum = 0, epoch = kEpoch;
    const NodeId names[] = {"a", "b", "c"};
    for (int step = 0; step < 800; ++step) {
      const double what = random.uniform();
      const ObjectKey key = "k" + std::to_string(random.below(80));
      if (what < 0.4) {
        PutStart m;
        m.pin = random.chance(0.3) && pinned.size() < 20 ? 2 : 0;
        m.replicas = random.chance(0.2) ? 2 : 1;
        if (c.put(m, key, random.below(20 * kPage), ++checksum) == kDone && m.pin != 0)
          pinned[key] = checksum;
      } else if (what < 0.55) {
        (void)c.master->handle(CopyKey{key, {}, {}, random.chance(0.5), {}}, c.now);
      } else if (what < 0.65) {
        (void)c.master->handle(ChangeReplicas{key, static_cast<uint32_t>(1 + random.below(3)), {}},
                               c.now);
      } else if (what < 0.75) {
        if (const auto removed = c.remove(key, true); removed && removed->ok()) pinned.erase(key);
      } else if (what < 0.80) {
        (void)c.master->handle(
            Drain{names[random.below(3)], static_cast<uint8_t>(1 + random.below(2))}, c.now);
      } else if (what < 0.81) {
        c.restart_master(epoch += 1 + random.below(3));
      } else {
        c.run_until(c.now + std::chrono::milliseconds(random.below(300)));
      }
      if (random.chance(0.7)) c.pump();
      if (step % 20 != 0) continue;
      for (const auto& [k, sum] : pinned) CHECK(c.get(k).checksum == sum);
    }
    for (const char* n : {"a", "b", "c"})
      (void)c.master->handle(Drain{n, static_cast<uint8_t>(DrainAction::kCancel)}, c.now);
    c.run_until(c.now + 60s);
    uint64_t recorded = 0;
    for (const auto& o : c.list()) CHECK(c.remove(o.key, true)->ok());
    for (const auto& [name, node] : c.nodes) recorded += node->directory.objects();
    CHECK(recorded == 0);
    CHECK(c.stat().used == 0);
    for (const auto& [name, node] : c.master->members().all()) {
      CHECK(node->objects == 0);
      CHECK(node->space.used() == 0);
    }
  }
}

}  // namespace

}  // namespace tasks_test
}  // namespace mc::store
