// F58: hard pins and contexts leave room for everybody's puts.
#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

PutStart of(const std::string& tenant, Pin pin, ObjectClass cls = ObjectClass::kNormal,
            const std::string& group = {}) {
  PutStart m;
  m.tenant = tenant;
  m.pin = static_cast<uint8_t>(pin);
  m.cls = static_cast<uint8_t>(cls);
  m.group = group;
  return m;
}
MasterOptions quick_leases() {
  MasterOptions o;
  o.lease_ttl = 10ms;
  return o;
}
uint64_t pinned(const FakeCluster& c) { return c.master->tenants().pinned() / kPage; }

// Puts one page at a time. Returns: how many were granted before the first refusal.
int put_until_refused(FakeCluster& c, const PutStart& config, const std::string& prefix) {
  for (int i = 0; i < 100; ++i) {
    const Time before = c.now;
    const PutGrant g = c.grant(config, prefix + std::to_string(i), kPage);
    if (!g.outcome.ok()) {
      CHECK(g.outcome.code == static_cast<uint8_t>(Code::kNoSpace));
      CHECK(g.outcome.what.find("-share") != std::string::npos);
      CHECK(c.now == before);  // at once
      return i;
    }
    REQUIRE(c.end(prefix + std::to_string(i), g.generation, 1, config.tenant).ok());
  }
  return 100;
}

TEST_CASE("F58: a tenant pins half of the pool, all of them three quarters; others still put") {
  for (const bool context : {false, true}) {
    CAPTURE(context);
    const auto keeps = [&](const std::string& tenant) {
      return context ? of(tenant, Pin::kNone, ObjectClass::kContext) : of(tenant, Pin::kHard);
    };
    FakeCluster c(quick_leases());
    c.add("n", 100 * kPage);
    CHECK(put_until_refused(c, keeps("greedy"), "k") == 50);
    for (int i = 0; i < 120; ++i)
      REQUIRE(c.put(of("modest", Pin::kNone), "m" + std::to_string(i), kPage) == kDone);
    CHECK(put_until_refused(c, keeps("modest"), "p") == 25);
    CHECK(pinned(c) == 75);
    for (int i = 0; i < 60; ++i) REQUIRE(c.put("n" + std::to_string(i), kPage) == kDone);
    (void)c.remove(RemovePrefix{"", {}, true, "greedy"});
    CHECK(pinned(c) == 25);
    CHECK(c.put(keeps("modest"), "again", kPage) == kDone);
  }
}

TEST_CASE("a pin of a stored object is refused beyond the share, and so is its copy") {
  FakeCluster c(quick_leases());
  c.add("a", 5 * kPage);
  c.add("b", 5 * kPage);
  std::vector<ObjectKey> keys;
  for (int i = 0; i < 7; ++i) {
    keys.push_back("k" + std::to_string(i));
    REQUIRE(c.put(keys.back(), kPage) == kDone);
  }
  const auto pin = [&](const std::vector<ObjectKey>& which, Pin how) {
    auto answer = c.master->handle(PinKeys{which, static_cast<uint8_t>(how), 0, {}}, c.now);
    c.pump();
    return answer->items;
  };
  const auto answers = pin(keys, Pin::kHard);
  for (int i = 0; i < 5; ++i) CHECK(answers[static_cast<size_t>(i)].ok());
  CHECK(answers[5].code == static_cast<uint8_t>(Code::kNoSpace));
  CHECK(pin({keys[0]}, Pin::kHard)[0].ok());  // it is pinned already
  CHECK(pin({keys[6]}, Pin::kSoft)[0].ok());
  const auto copies = c.master->handle(ChangeReplicas{keys[0], 2, {}}, c.now);
  REQUIRE_FALSE(copies);
  CHECK(copies.error().code == Code::kNoSpace);
  CHECK(pin({keys[1]}, Pin::kNone)[0].ok());
  CHECK(c.master->handle(ChangeReplicas{keys[0], 2, {}}, c.now));
  c.pump();
  CHECK(c.get(keys[0]).places.size() == 2);
  CHECK(pinned(c) == 5);
}

TEST_CASE("the members of a group that has a pin count as pinned") {
  FakeCluster c(quick_leases());
  c.add("n", 20 * kPage);
  const PutStart plain = of({}, Pin::kNone, ObjectClass::kNormal, "g");
  for (int i = 0; i < 4; ++i) REQUIRE(c.put(plain, "g" + std::to_string(i), kPage) == kDone);
  CHECK(pinned(c) == 0);
  REQUIRE(c.put(of({}, Pin::kHard, ObjectClass::kNormal, "g"), "pin", kPage) == kDone);
  CHECK(pinned(c) == 5);
  CHECK(put_until_refused(c, plain, "more") == 5);
  CHECK(c.remove("pin", true)->ok());
  CHECK(pinned(c) == 0);
}

TEST_CASE("what is pinned is counted again after a restart of the master") {
  FakeCluster c(quick_leases());
  c.add("n", 10 * kPage);
  c.add("m", 10 * kPage);
  PutStart timed = of("t", Pin::kHard, ObjectClass::kNormal, "g");
  timed.ttl_ms = 60'000;
  timed.replicas = 2;
  REQUIRE(c.put(timed, "k", 1) == kDone);
  REQUIRE(c.put(of("t", Pin::kNone, ObjectClass::kContext), "context", 1) == kDone);
  CHECK(pinned(c) == 3);
  c.restart_master(kEpoch + 5);
  CHECK(pinned(c) == 3);
  c.run_until(c.now + 61s);
  CHECK(pinned(c) == 1);
  (void)c.remove(RemovePrefix{"", {}, true, "t"});
  CHECK(pinned(c) == 0);
}

}  // namespace
}  // namespace mc::store
