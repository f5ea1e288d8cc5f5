// Nodes that were away return with what they held: removed and replaced objects stay deleted.
// Draining with disks evicts and loses nothing.
#include "store/metadata/tombstones.h"
#include "tests/unit/store/fake_disk.h"

namespace mc::store {

TEST_CASE("what a lost node's disk held keeps neither a listing nor a removal waiting long") {
  constexpr size_t kInPage = 4000, kPageCount = 3;
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  const Generation generation = c.nodes["a"]->ref.generation;
  for (size_t page = 0; page < kPageCount; ++page) {
    TierMount m{"a", generation, 1 * kGiB, page == 0, page + 1 == kPageCount, {}};
    for (size_t i = page * kInPage; i < (page + 1) * kInPage; ++i)
      m.objects.push_back({"k" + std::to_string(i), 100, 7, Generation{i + 1}, 0, 0});
    REQUIRE(c.master->handle(m, c.now));
  }
  REQUIRE(c.master->handle(Stat{}, c.now).disk_objects == kInPage * kPageCount);
  (void)c.master->handle(Unmount{"a", generation}, c.now);
  c.nodes.erase("a");
  CHECK_FALSE(c.has("k1"));
  size_t steps = 0;
  SUBCASE("a removal by prefix makes way in each of its calls") {
    for (bool more = true; more && steps < 1000; ++steps) {
      const auto removed = c.remove(RemovePrefix{"k", {}, false, {}});
      REQUIRE(removed);
      CHECK(removed->removed == 0);
      more = removed->more;
    }
  }
  SUBCASE("a listing waits for fewer steps than there are dozens of them") {
    bool listed = false;
    c.master->handle(List{"", "", 10}, c.now, [&](const Result<Listed>& r) {
      listed = true;
      REQUIRE(r);
      CHECK(r->items.empty());
    });
    CHECK_FALSE(listed);
    for (; !listed && steps < 1000; ++steps) c.master->tick(c.now);
  }
  CHECK(steps <= kInPage * kPageCount / 1000 + 2);
}

TEST_CASE("a retried put does not bring back an object that was removed meanwhile") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  const PutGrant first = c.grant("k", 1000);
  REQUIRE(c.end("k", first.generation).ok());  // the answer is lost: the writer does not know
  c.restart_master(kEpoch + 10);
  REQUIRE(c.has("k"));
  CHECK(Code{c.grant(PutStart{}, "k", 1000, first.generation).outcome.code} == Code::kExists);
  REQUIRE(c.remove("k")->ok());
  CHECK(Code{c.grant(PutStart{}, "k", 1000, first.generation).outcome.code} == Code::kExists);
  CHECK(!c.has("k"));
  // A put of its own is one, and so is one whose first attempt left nothing.
  const PutGrant another = c.grant("k", 1000);
  REQUIRE(another.outcome.ok());
  CHECK(c.revoke("k", another.generation).ok());
  const PutGrant again = c.grant(PutStart{}, "k", 1000, another.generation);
  REQUIRE(again.outcome.ok());
  CHECK(c.end("k", again.generation).ok());
  CHECK(c.has("k"));
}

TEST_CASE(
    "a tombstone voids older copies; a dropped one voids all from nodes away since before it") {
  Tombstones g(4);
  g.add("k", Generation{10});
  CHECK(g.dead("n", "k", Generation{9}));
  CHECK_FALSE(g.dead("n", "k", Generation{10}));
  CHECK_FALSE(g.dead("n", "other", Generation{1}));
  g.left("old", Generation{5}, {Tombstones::hash_of("k")});
  g.left("new", Generation{50}, {});
  g.add_prefix("", "a/", Generation{20});
  g.add_prefix(std::string("t\0", 2), "", Generation{20});
  CHECK(g.dead("n", "a/1", Generation{19}));
  CHECK_FALSE(g.dead("n", "a/1", Generation{20}));
  CHECK(g.dead("n", std::string("t\0z", 3), Generation{19}));
  CHECK_FALSE(g.dead("n", std::string("u\0a/", 4), Generation{19}));
  for (uint64_t i = 0; i < 4; ++i) g.add("x" + std::to_string(i), Generation{30 + i});
  CHECK(g.size() == 4);
  // That of k was given up: who was away then loses what is older; who left later does not.
  CHECK(g.dead("old", "y", Generation{9}));
  CHECK_FALSE(g.dead("old", "y", Generation{10}));
  CHECK_FALSE(g.dead("new", "y", Generation{9}));
  g.left("new", Generation{60}, {Tombstones::hash_of("z")});
  CHECK(g.held_away("k"));
  CHECK(g.held_away("z"));
  CHECK_FALSE(g.held_away("y"));
  g.node_rejoined("old");
  CHECK_FALSE(g.held_away("k"));
  CHECK(g.any_away());
}

TEST_CASE("re-adding a tombstone refreshes its expiry") {
  Tombstones g(2);
  g.add("k", Generation{1});
  g.add("k", Generation{5});
  g.add("j", Generation{6});
  CHECK(g.dead("n", "k", Generation{4}));
  CHECK(g.size() == 2);
}

TEST_CASE("a key removed while the only node that has it is away does not come back") {
  for (const bool memory : {true, false}) {
    CAPTURE(memory);
    FakeCluster c;
    c.add("b", 64 * kPage);
    c.add("a", 64 * kPage);
    FakeDisk disk{c, "a"};
    if (!memory) disk.objects["k"] = on_disk("k", 1);
    disk.mount();
    if (memory) {
      PutStart on_a;
      on_a.prefer = "a";
      REQUIRE(c.put(on_a, "k", 100) == kDone);
      REQUIRE(c.put(on_a, "stays", 100) == kDone);
    }
    REQUIRE(c.has("k"));
    lose(c, "a");
    CHECK_FALSE(c.has("k"));
    CHECK(static_cast<Code>(c.remove("k")->code) == Code::kNotFound);
    c.mount(*c.nodes["a"]);
    disk.mount();
    c.pump();
    CHECK_FALSE(c.has("k"));
    if (memory) CHECK(c.has("stays"));
    disk.work();
    CHECK(disk.objects.empty());
    CHECK(c.nodes["a"]->directory.objects() == (memory ? 1 : 0));
  }
}

TEST_CASE("what was removed does not come back either when the master was restarted meanwhile") {
  for (const bool elsewhere : {true, false}) {
    CAPTURE(elsewhere);
    FakeCluster c;
    c.add("b", 64 * kPage);
    c.add("c", 64 * kPage);
    c.add("a", 64 * kPage);
    PutStart on_a;
    on_a.prefer = "a";
    on_a.replicas = elsewhere ? 2 : 1;
    REQUIRE(c.put(on_a, "k", 100) == kDone);
    REQUIRE(c.put(on_a, "stays", 100) == kDone);
    auto a = std::move(c.nodes["a"]);
    c.nodes.erase("a");
    c.run_until(c.now + c.options_used.client_ttl + 2s);
    REQUIRE(c.master->members().all().count("a") == 0);
    CHECK(c.remove("k")->ok() == elsewhere);
    c.restart_master(kEpoch + 100);
    REQUIRE(c.master->members().all().size() == 2);
    FakeNode& back = *(c.nodes["a"] = std::move(a));
    c.mount(back);
    c.pump();
    CHECK_FALSE(c.has("k"));
    CHECK(c.has("stays"));
  }
}

TEST_CASE("an old content does not come back after the newer one was evicted or removed") {
  FakeCluster c;
  c.add("b", 64 * kPage);
  c.add("a", 64 * kPage);
  FakeDisk disk{c, "a"};
  disk.objects["k"] = on_disk("k", 1, 1);
  disk.objects["same"] = on_disk("same", 2, 1);
  disk.mount();
  lose(c, "a");
  REQUIRE(c.put("k", 100, 2) == kDone);
  lose(c, "b");  // and with it the newer content
  CHECK_FALSE(c.has("k"));
  c.mount(*c.nodes["a"]);
  disk.mount();
  CHECK_FALSE(c.has("k"));
  CHECK(c.has("same"));
}

TEST_CASE("the next master keeps the newer of two contents, whether memory or a disk has it") {
  for (const bool memory_is_newer : {true, false}) {
    CAPTURE(memory_is_newer);
    FakeCluster c;
    c.add("a", 64 * kPage);
    REQUIRE(c.put("k", 100, 1) == kDone);
    const Generation in_memory = c.get("k").generation;
    c.restart_master(kEpoch + 100);  // the node of the memory is back first
    REQUIRE(c.has("k"));
    c.add("b", 64 * kPage);
    FakeDisk disk{c, "b"};
    disk.objects["k"] = {
        "k", kPage, 2, Generation{memory_is_newer ? in_memory.n - 1 : in_memory.n + 1}, 0, 0};
    disk.mount();
    c.pump();
    disk.work();
    REQUIRE(c.has("k"));
    CHECK(c.get("k").checksum == (memory_is_newer ? 1 : 2));
    CHECK(disk.objects.size() == (memory_is_newer ? 0 : 1));
    CHECK(c.nodes["a"]->directory.objects() == (memory_is_newer ? 1 : 0));
    // The older one does not return with a third node after the newer one is gone.
    c.add("c", 64 * kPage);
    FakeDisk late{c, "c"};
    late.objects["k"] = {"k", kPage, 3, Generation{in_memory.n - 1}, 0, 0};
    late.mount();
    late.work();
    CHECK(late.objects.empty());
  }
}

TEST_CASE("a disk's object of a tenant too many is not taken for one of the default tenant") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  REQUIRE(c.put("k", 100, 1) == kDone);
  FakeDisk disk{c, "a"};
  const auto theirs = [](const std::string& tenant) { return tenant + '\0' + "k"; };
  for (size_t i = 1; i < Tenants::kMax; ++i) {
    const std::string name = theirs("t" + std::to_string(i));
    disk.objects[name] = on_disk(name, i);
  }
  const std::string late = theirs("z");
  disk.objects[late] = on_disk(late, Tenants::kMax, 2);
  disk.mount();
  disk.work();
  CHECK(disk.objects.count(late) == 1);
  CHECK(c.get("k").checksum == 1);
}

TEST_CASE("a removal that waits for a holder that dies holds when it returns") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  FakeDisk disk{c, "a"};
  disk.objects["k"] = on_disk("k", 1);
  disk.mount();
  auto removed = std::make_shared<bool>(false);
  c.master->handle(Remove{{"k"}, false}, c.now,
                   [removed](const Result<Outcomes>& r) { *removed = r && r->items[0].ok(); });
  CHECK_FALSE(*removed);  // the job is never carried out
  lose(c, "a");
  CHECK(*removed);
  c.mount(*c.nodes["a"]);
  disk.mount();
  CHECK_FALSE(c.has("k"));
}

TEST_CASE("a key of another tenant with the same name is not affected") {
  FakeCluster c;
  c.add("b", 64 * kPage);
  c.add("a", 64 * kPage);
  FakeDisk disk{c, "a"};
  disk.objects["k"] = on_disk("k", 1);
  const std::string theirs("t\0k", 3);
  disk.objects[theirs] = on_disk(theirs, 2);
  disk.mount();
  lose(c, "a");
  (void)c.remove("k");
  REQUIRE(c.remove(RemovePrefix{"k", {}, false, {}}));
  c.mount(*c.nodes["a"]);
  disk.mount();
  CHECK_FALSE(c.has("k"));
  CHECK(c.look(Exists{{"k"}, "t"})->items[0] == 1);
}

TEST_CASE("objects on a draining node are moved, not evicted") {
  MasterOptions o;
  o.drain_parallel = 1;
  o.lease_ttl = 1ms;
  FakeCluster c(o);
  c.add("a", 64 * kPage);
  for (int i = 0; i < 40; ++i) REQUIRE(c.put("a" + std::to_string(i), kPage) == kDone);
  c.add("b", 64 * kPage);
  c.copies_succeed = false;
  REQUIRE(c.master->handle(Drain{"a", static_cast<uint8_t>(DrainAction::kStart)}, c.now));
  c.pump();
  for (int i = 0; i < 200; ++i) {  // three times what is left of the pool
    REQUIRE(c.put("b" + std::to_string(i), kPage) == kDone);
    c.run_until(c.now + 5ms);
  }
  for (int i = 0; i < 40; ++i) CHECK(c.has("a" + std::to_string(i)));
}

TEST_CASE("a drain empties the disk too, by way of other nodes, and nothing is lost") {
  MasterOptions o;
  o.lease_ttl = 1ms;
  FakeCluster c(o);
  c.add("a", 64 * kPage);
  FakeDisk a{c, "a"};
  for (int i = 0; i < 30; ++i) {
    const std::string key = "d" + std::to_string(i);
    a.objects[key] = on_disk(key, 1);
  }
  a.mount();
  for (int i = 0; i < 5; ++i) REQUIRE(c.put("m" + std::to_string(i), kPage) == kDone);
  const auto bring = [&](const TierObject& object) {
    PutStart m;
    m.promote = true;
    return c.put(m, object.name, object.bytes, object.checksum) == kDone;
  };
  auto info = c.master->handle(Drain{"a", static_cast<uint8_t>(DrainAction::kStart)}, c.now);
  REQUIRE(info);
  CHECK(info->others == 0);
  a.work();  // nowhere to go
  CHECK(a.objects.size() == 30);
  CHECK(c.master->handle(Drain{"a", 0}, c.now)->state == "blocked");
  c.add("b", 64 * kPage);
  for (int i = 0; i < 50; ++i) {
    a.work(bring);
    c.run_until(c.now + 100ms);
  }
  info = c.master->handle(Drain{"a", 0}, c.now);
  REQUIRE(info);
  CHECK(info->state == "drained");
  CHECK(info->objects_left == 0);
  CHECK(a.objects.empty());
  CHECK(c.master->totals().promoted == 30);
  CHECK(c.master->totals().promotions_failed == 0);
  CHECK(c.master->totals().promoting() == 0);
  for (int i = 0; i < 30; ++i) CHECK(c.has("d" + std::to_string(i)));
  for (int i = 0; i < 5; ++i) CHECK(c.has("m" + std::to_string(i)));
}

TEST_CASE("promotions off a disk are counted by how they end") {
  FakeCluster c;
  c.add("a", 2 * kPage);
  FakeDisk a{c, "a"};
  a.objects["d"] = on_disk("d", 1);
  a.mount();
  PutStart m;
  m.promote = true;
  m.items = {{"d", a.objects["d"].bytes}};
  c.master->handle(m, c.now, [](const Result<PutStarted>& r) {
    REQUIRE(r);
    CHECK(r->items[0].outcome.ok());
  });
  CHECK(c.master->totals().promoting() == 1);
  c.run_until(c.now + 31s);  // nobody ended it
  CHECK(c.master->totals().promoting() == 0);
  CHECK(c.master->totals().promotions_failed == 1);
  m.items = {{"d", 3 * kPage}};
  c.master->handle(m, c.now, [](const Result<PutStarted>& r) {
    REQUIRE(r);
    CHECK(r->items[0].outcome.code == static_cast<uint8_t>(Code::kNoSpace));
  });
  CHECK(c.master->totals().promotions_no_room == 1);
  CHECK(c.master->totals().promotions == 1);
}

TEST_CASE("a loss with a node is one event, and none if another copy exists") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  c.add("b", 64 * kPage);
  FakeDisk a{c, "a"}, b{c, "b"};
  a.objects["disk-only"] = on_disk("disk-only", 1);
  a.objects["both-disks"] = b.objects["both-disks"] = on_disk("both-disks", 1);
  a.mount();
  b.mount();
  PutStart m;
  m.prefer = "a";
  REQUIRE(c.put(m, "memory", kPage) == kDone);
  const uint64_t from = c.master->events().next();
  REQUIRE(c.master->handle(Unmount{"a", a.generation()}, c.now));
  const auto replay = c.master->handle(Replay{from, 100}, c.now);
  REQUIRE(replay);
  std::vector<std::string> lost;
  for (const Event& e : replay->events) {
    CHECK(e.kind == static_cast<uint8_t>(EventKind::kRemoved));
    CHECK(e.reason == "lost: its node is gone");
    CHECK(e.tenant == "default");
    lost.push_back(e.key);
  }
  CHECK(lost == std::vector<std::string>{"memory", "disk-only"});
}

TEST_CASE("what leaves its last disk is an event, and none while memory or a disk has it") {
  FakeCluster c;
  c.add("a", 64 * kPage);
  c.add("b", 64 * kPage);
  FakeDisk a{c, "a"}, b{c, "b"};
  for (const char* key : {"removed", "prefix/1", "evicted", "gone", "both", "memory"})
    a.objects[key] = on_disk(key, 1);
  b.objects["both"] = on_disk("both", 1);
  a.mount();
  b.mount();
  PutStart promoted;
  promoted.promote = true;
  REQUIRE(c.put(promoted, "memory", kPage) == kDone);
  const uint64_t from = c.master->events().next();
  CHECK(!c.remove("removed"));  // answered once the disk has forgotten it
  CHECK(!c.remove(RemovePrefix{"prefix/", {}, false, {}}));  // likewise
  for (const char* key : {"evicted", "both", "memory"}) {
    a.report(TierEvent::kGone, a.objects[key]);
    a.objects.erase(key);
  }
  a.work();
  // A drain meets one that its disk has lost.
  REQUIRE(c.master->handle(Drain{"a", static_cast<uint8_t>(DrainAction::kStart)}, c.now));
  a.report(TierEvent::kNotBrought, a.objects["gone"], Code::kNotFound);
  a.work();
  const auto replay = c.master->handle(Replay{from, 100}, c.now);
  REQUIRE(replay);
  std::vector<std::string> gone;
  for (const Event& e : replay->events) {
    CHECK(e.kind == static_cast<uint8_t>(EventKind::kRemoved));
    gone.push_back(e.key + ": " + e.reason);
  }
  CHECK(gone == std::vector<std::string>{"removed: removed", "prefix/1: removed",
                                         "evicted: its disk has given it up",
                                         "gone: its disk has given it up"});
  CHECK(c.has("both"));
  CHECK(c.has("memory"));
}

TEST_CASE("a wrong quota is refused under the name of its option") {
  MasterOptions o;
  o.tenant_disk_quotas = "a=much";
  const auto refused = o.check();
  REQUIRE(!refused);
  CHECK(refused.error().what.find("tenant-disk-quotas 'a=much'") == 0);
  o.tenant_disk_quotas.clear();
  o.tenant_quotas = "a=1GiB,a=2GiB";
  const auto twice = o.check();
  REQUIRE(!twice);
  CHECK(twice.error().what.find("tenant-quotas: 'a'") == 0);
}

TEST_CASE("a value too large to load from a disk is not written to it") {
  MasterOptions o;
  o.offload = "eager";
  FakeCluster c(o);
  c.add("a", 64 * kPage);
  FakeDisk a{c, "a", 4 * kPage};
  a.mount();
  REQUIRE(c.put("large", 5 * kPage) == kDone);
  REQUIRE(c.put("small", kPage) == kDone);
  a.work();
  CHECK(a.objects.count("small") == 1);
  CHECK(a.objects.count("large") == 0);
}

TEST_CASE(
    "a tenant at its quota of the disks gives up what came there first, but no living context") {
  MasterOptions o;
  o.offload = "eager";
  o.tenant_disk_quotas = "small=16KiB";
  FakeCluster c(o);
  c.add("a", 256 * kPage);
  FakeDisk a{c, "a"};
  a.mount();
  PutStart m;
  m.tenant = "small";
  const auto name = [](int i) { return std::string("small") + '\0' + "k" + std::to_string(i); };
  for (int i = 0; i < 8; ++i) {
    REQUIRE(c.put(m, "k" + std::to_string(i), kPage) == kDone);
    REQUIRE(c.put("other" + std::to_string(i), kPage) == kDone);
    a.work();
  }
  CHECK(a.objects.size() == 8 + 4);
  CHECK(a.objects.count(name(3)) == 0);
  CHECK(a.objects.count(name(4)) == 1);
  const ClusterStat stat = c.stat();
  REQUIRE(stat.tenants.size() == 2);
  CHECK(stat.tenants[1].disk_used == 4 * kPage);
  CHECK(stat.tenants[1].disk_quota == 4 * kPage);
  CHECK(stat.tenants[0].disk_used == 8 * kPage);
  m.cls = static_cast<uint8_t>(ObjectClass::kContext);
  m.ttl_ms = 3'600'000;
  for (int i = 10; i < 14; ++i) {
    REQUIRE(c.put(m, "k" + std::to_string(i), kPage) == kDone);
    a.work();
  }
  m.cls = 0;
  m.ttl_ms = 0;
  REQUIRE(c.put(m, "k20", kPage) == kDone);
  a.work();
  for (int i = 10; i < 14; ++i) CHECK(a.objects.count(name(i)) == 1);
  CHECK(a.objects.count(name(20)) == 0);
  (void)c.remove(RemovePrefix{"", {}, true, "small"});
  a.work();
  CHECK(a.objects.size() == 8);
  CHECK(c.stat().tenants[1].disk_used == 0);
}

}  // namespace mc::store
