#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

PutStart of_class(ObjectClass cls, uint64_t ttl_ms = 0) {
  PutStart m;
  m.cls = static_cast<uint8_t>(cls);
  m.ttl_ms = ttl_ms;
  return m;
}
PutStart pinned(Pin pin, uint64_t ttl_ms = 0) {
  PutStart m;
  m.pin = static_cast<uint8_t>(pin);
  m.ttl_ms = ttl_ms;
  return m;
}
PutStart in_group(const std::string& group) {
  PutStart m;
  m.group = group;
  return m;
}
PutStart of_tenant(const std::string& tenant) {
  PutStart m;
  m.tenant = tenant;
  return m;
}
MasterOptions quick() {
  MasterOptions o;
  o.lease_ttl = 10ms;
  return o;
}
MasterOptions pinning_all() {
  MasterOptions o = quick();
  o.pin_share = o.tenant_pin_share = 1;
  return o;
}

TEST_CASE("a value that no single hole takes is put in pieces, which all come back") {
  FakeCluster c(pinning_all());
  FakeNode& n = c.add("n", 8 * kPage);
  for (int i = 0; i < 8; ++i)
    REQUIRE(c.put(pinned(Pin::kHard), "k" + std::to_string(i), 1) == kDone);
  for (const char* k : {"k1", "k3", "k5"}) REQUIRE(c.remove(k, true)->ok());
  REQUIRE(c.put("big", 3 * kPage - 5, 42) == kDone);
  const Located at = c.get("big");
  REQUIRE(at.places.size() == 1);
  REQUIRE(at.places[0].more.size() == 2);
  CHECK(at.places[0].bytes == kPage);
  CHECK(at.places[0].more[1].bytes == kPage - 5);
  CHECK(at.places[0].more[1].guard == n.layout.guard_of(at.places[0].more[1].offset));
  c.restart_master(kEpoch + 5);
  const Located again = c.get("big");
  CHECK(again.places[0].more.size() == 2);
  CHECK(again.places[0].more[1].offset == at.places[0].more[1].offset);
  c.run_until(c.now + 1s);
  REQUIRE(c.remove("big")->ok());
  CHECK(c.stat().used == 5 * kPage);
}

TEST_CASE("hard pinned objects stay, soft pinned ones go only when there is nothing else") {
  FakeCluster c(quick());
  c.add("n", 10 * kPage);
  REQUIRE(c.put(pinned(Pin::kHard), "hard", 1) == kDone);
  REQUIRE(c.put(pinned(Pin::kSoft), "soft", 1) == kDone);
  for (int i = 0; i < 20; ++i) REQUIRE(c.put("k" + std::to_string(i), 1) == kDone);
  CHECK(c.has("hard"));
  CHECK(c.has("soft"));
  REQUIRE(c.put("large", 9 * kPage) == kDone);
  CHECK(c.has("hard"));
  CHECK_FALSE(c.has("soft"));
  CHECK(c.put("larger", 10 * kPage) == Code::kNoSpace);
  CHECK(c.remove("hard")->code == static_cast<uint8_t>(Code::kBusy));
  CHECK(c.remove("hard", true)->ok());
}

TEST_CASE("a pin with a time to live ends, and so does the life of a context") {
  FakeCluster c(quick());
  c.add("n", 4 * kPage);
  REQUIRE(c.put(pinned(Pin::kHard, 60'000), "pinned", 1) == kDone);
  REQUIRE(c.put(of_class(ObjectClass::kContext, 30'000), "context", 1) == kDone);
  for (int i = 0; i < 9; ++i) REQUIRE(c.put("a" + std::to_string(i), 1) == kDone);
  CHECK(c.has("context"));
  c.run_until(t0 + 31s);
  for (int i = 0; i < 9; ++i) REQUIRE(c.put("b" + std::to_string(i), 1) == kDone);
  CHECK_FALSE(c.has("context"));
  CHECK(c.has("pinned"));
  c.run_until(t0 + 61s);
  for (int i = 0; i < 9; ++i) REQUIRE(c.put("c" + std::to_string(i), 1) == kDone);
  CHECK_FALSE(c.has("pinned"));
}

TEST_CASE("pins, classes, groups and tenants survive a restart of the master") {
  FakeCluster c(quick());
  c.add("n", 10 * kPage);
  PutStart config = pinned(Pin::kHard, 60'000);
  config.group = "g";
  config.tenant = "t";
  REQUIRE(c.put(config, "k", 1) == kDone);
  c.now += 20s;
  c.restart_master(kEpoch + 20);
  const auto listed = c.look(List{"", "", 10, "t"});
  REQUIRE(listed->items.size() == 1);
  CHECK(listed->items[0].pin == static_cast<uint8_t>(Pin::kHard));
  CHECK(c.list().empty());  // of the tenant "default"
  c.run_until(c.now + 42s);
  CHECK(c.look(List{"", "", 10, "t"})->items[0].pin == 0);
}

TEST_CASE("ephemeral puts are refused, or kept while nothing must go for them") {
  {
    FakeCluster c;
    c.add("n", 64 * kMiB);
    CHECK(c.put(of_class(ObjectClass::kEphemeral), "k", 1) == Code::kDenied);
    CHECK(c.stat().used == 0);
    CHECK(c.now == t0);  // at once
  }
  MasterOptions options = quick();
  options.ephemeral = "if-free";
  FakeCluster c(options);
  c.add("n", 100 * kPage);
  int kept = 0;
  for (int i = 0; i < 200; ++i)
    kept += c.put(of_class(ObjectClass::kEphemeral), "e" + std::to_string(i), 1) == kDone;
  CHECK(kept == 95);
  CHECK(c.stat().evicted_objects == 0);
  for (int i = 0; i < 50; ++i) REQUIRE(c.put("k" + std::to_string(i), 1) == kDone);
  for (int i = 0; i < 50; ++i) CHECK(c.has("k" + std::to_string(i)));  // ephemeral ones went first
}

TEST_CASE("the objects of a group are leased together and evicted together") {
  FakeCluster c(quick());
  c.add("n", 10 * kPage);
  for (const char* k : {"g0", "g1", "g2"}) REQUIRE(c.put(in_group("g"), k, 1) == kDone);
  c.get("g1");
  CHECK(c.remove("g0")->code == static_cast<uint8_t>(Code::kBusy));
  c.run_until(c.now + 20ms);
  REQUIRE(c.put("large", 8 * kPage) == kDone);
  for (const char* k : {"g0", "g1", "g2"}) CHECK_FALSE(c.has(k));
}

TEST_CASE("a tenant at its quota evicts only its own objects") {
  MasterOptions options = quick();
  options.tenant_quotas = "small=16KiB,other=1MiB";
  FakeCluster c(options);
  c.add("n", 1000 * kPage);
  REQUIRE(c.put("k0", 1) == kDone);
  for (int i = 0; i < 50; ++i)
    REQUIRE(c.put(of_tenant("small"), "k" + std::to_string(i), 1) == kDone);
  CHECK(c.has("k0"));
  CHECK(c.look(List{"", "", 100, "small"})->items.size() == 4);
  CHECK(c.put(of_tenant("small"), "large", 5 * kPage) == Code::kNoSpace);
  CHECK(c.look(List{"", "", 100, "small"})->items.size() == 4);
  for (const auto& t : c.stat().tenants)
    if (t.name == "small") CHECK(t.used == 4 * kPage);
}

TEST_CASE("tenants do not see each other's objects, and one key is two objects") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  REQUIRE(c.put(of_tenant("a"), "k", 1, 11) == kDone);
  CHECK_FALSE(c.has("k"));
  CHECK(c.look(Exists{{"k"}, "b"})->items[0] == 0);
  REQUIRE(c.put(of_tenant("b"), "k", 1, 22) == kDone);
  CHECK(c.look(GetReplicas{{"k"}, 0, "a"})->items[0].checksum == 11);
  CHECK(c.look(GetReplicas{{"k"}, 0, "b"})->items[0].checksum == 22);
  CHECK(c.remove("k")->code == static_cast<uint8_t>(Code::kNotFound));
}

TEST_CASE("every event is numbered, and a replay reports a gap") {
  MasterOptions options = quick();
  options.event_log = 4;
  FakeCluster c(options);
  c.add("n", 64 * kMiB);
  for (int i = 0; i < 6; ++i) REQUIRE(c.put("k" + std::to_string(i), 1) == kDone);
  REQUIRE(c.remove("k0")->ok());
  auto replay = c.master->handle(Replay{4, 100}, c.now);
  CHECK_FALSE(replay->gap);
  REQUIRE(replay->events.size() == 4);
  CHECK(replay->events[0].seq == 4);
  CHECK(replay->events[3].kind == static_cast<uint8_t>(EventKind::kRemoved));
  CHECK(replay->events[3].key == "k0");
  CHECK(replay->next == 8);
  CHECK(c.master->handle(Replay{1, 100}, c.now)->gap);
  CHECK(c.look(List{"", "", 100})->next_event == 8);
}

}  // namespace
}  // namespace mc::store
