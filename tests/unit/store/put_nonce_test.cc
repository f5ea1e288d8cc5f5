// A put-start that is sent again, because its answer was lost, with the same nonce.
#include <algorithm>

#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

PutStart with_nonce(uint64_t nonce, uint32_t replicas = 1) {
  PutStart m;
  m.nonce = nonce;
  m.replicas = replicas;
  return m;
}

bool is_same(const PutGrant& a, const PutGrant& b) {
  return a.outcome.ok() && b.outcome.ok() && a.generation == b.generation &&
         std::ranges::equal(a.places, b.places, [](const auto& x, const auto& y) {
           return wire::encode(x) == wire::encode(y);
         });
}

PutStarted reply_to(FakeCluster& c, const PutStart& m) {
  std::optional<PutStarted> reply;
  c.master->handle(m, c.now, [&](const Result<PutStarted>& r) { reply = r.value(); });
  REQUIRE(reply);
  return *reply;
}

// A place names its node by a number in the reply.
std::vector<NodeId> nodes_of(const PutStarted& reply, size_t item = 0) {
  std::vector<NodeId> out;
  for (const auto& place : reply.items.at(item).places)
    out.push_back(reply.nodes.at(place.node).name);
  return out;
}

// Of a client that gave up before any answer came.
void give_up(FakeCluster& c, const PutStart& m) {
  PutRevoke revoke;
  revoke.nonce = m.nonce;
  revoke.tenant = m.tenant;
  for (const PutWant& want : m.items) revoke.items.push_back({want.key, {}, 0});
  const auto reply = c.master->handle(revoke, c.now);
  REQUIRE(reply);
  CHECK(reply->items.size() == m.items.size());
  for (const Outcome& item : reply->items) CHECK(item.ok());
  c.pump();
}

Code code_of(const PutGrant& grant) { return Code{grant.outcome.code}; }

}  // namespace

TEST_CASE("a put-start that is sent again is granted the same again, and takes no more space") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  PutStart m = with_nonce(77, 2);
  m.group = "g";
  m.pin = static_cast<uint8_t>(Pin::kHard);
  const PutGrant first = c.grant(m, "k", 10 * kPage);
  REQUIRE(first.places.size() == 2);
  const uint64_t used = c.stat().tenants[0].used;
  CHECK(is_same(first, c.grant(m, "k", 10 * kPage)));
  CHECK(is_same(first, c.grant(m, "k", 10 * kPage)));
  m.items = {{"k", 10 * kPage}};
  const std::vector<NodeId> nodes = nodes_of(reply_to(c, m));
  CHECK(nodes.size() == 2);
  PutStart both = m;  // whose own numbers of nodes are others
  both.nonce = 76;
  both.items = {{"other", kPage}, {"k", 10 * kPage}};
  const PutStarted mixed = reply_to(c, both);
  CHECK(mixed.items[0].outcome.ok());
  CHECK(nodes_of(mixed, 1) == nodes);
  REQUIRE(c.revoke("other", mixed.items[0].generation).ok());
  CHECK(c.stat().tenants[0].used == used);
  CHECK(c.stat().writing == 1);
  CHECK(c.end("k", first.generation).ok());
  CHECK(c.get("k").checksum == 1);
  CHECK(c.get("k").places.size() == 2);
}

TEST_CASE("a value in pieces is granted in the same pieces again") {
  MasterOptions options;
  options.high_watermark = 1;
  options.eviction_ratio = 0;
  FakeCluster c(options);
  c.add("n", 16 * kPage);
  for (int i = 0; i < 16; ++i) REQUIRE(c.put("k" + std::to_string(i), kPage) == kDone);
  for (int i = 0; i < 16; i += 2) REQUIRE(c.remove("k" + std::to_string(i))->ok());
  const PutGrant first = c.grant(with_nonce(77), "k", 3 * kPage);
  REQUIRE(first.places.size() == 1);
  REQUIRE(first.places[0].more.size() == 2);
  CHECK(is_same(first, c.grant(with_nonce(77), "k", 3 * kPage)));
}

TEST_CASE("only the same nonce for the same value of the same key has the grant again") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  const PutGrant first = c.grant(with_nonce(77, 2), "k", 1000);
  REQUIRE(first.places.size() == 2);
  CHECK(code_of(c.grant(with_nonce(0, 2), "k", 1000)) == Code::kBusy);  // an older client
  CHECK(code_of(c.grant(with_nonce(78, 2), "k", 1000)) == Code::kBusy);
  CHECK(code_of(c.grant(with_nonce(77, 2), "k", 1001)) == Code::kBusy);
  CHECK(code_of(c.grant(with_nonce(77, 1), "k", 1000)) == Code::kBusy);
  PutStart promoted = with_nonce(77, 2);
  promoted.promote = true;
  CHECK(code_of(c.grant(promoted, "k", 1000)) == Code::kBusy);
  PutStart other = with_nonce(77, 2);
  other.tenant = "other";
  const PutGrant others = c.grant(other, "k", 1000);  // a key of its own
  REQUIRE(others.outcome.ok());
  CHECK(others.generation != first.generation);
  CHECK(is_same(first, c.grant(with_nonce(77, 2), "k", 1000)));
  // Without a nonce nothing is known again.
  REQUIRE(c.grant("old", 1000).outcome.ok());
  CHECK(code_of(c.grant("old", 1000)) == Code::kBusy);
  CHECK(code_of(c.grant(with_nonce(77), "old", 1000)) == Code::kBusy);
}

TEST_CASE("a put that ended, or was given back, is not granted again by its nonce") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant ended = c.grant(with_nonce(77), "ended", 1000);
  c.master->handle(PutEnd{{{"ended", ended.generation, 1}}}, c.now, [](const auto&) {});
  std::optional<PutStarted> again;
  PutStart m = with_nonce(77);
  m.items = {{"ended", 1000}};
  c.master->handle(m, c.now, [&](const Result<PutStarted>& r) { again = r.value(); });
  REQUIRE(again);
  CHECK(code_of(again->items[0]) == Code::kBusy);  // the node has not recorded it yet
  c.pump();
  CHECK(code_of(c.grant(with_nonce(77), "ended", 1000)) == Code::kExists);

  const PutGrant revoked = c.grant(with_nonce(78), "revoked", 1000);
  REQUIRE(c.revoke("revoked", revoked.generation).ok());
  for (int i = 0; i < 2; ++i)
    CHECK(code_of(c.grant(with_nonce(78), "revoked", 1000)) == Code::kStale);
  CHECK(c.stat().writing == 0);
  CHECK(Code{c.end("revoked", revoked.generation).code} == Code::kStale);
  CHECK(c.put(with_nonce(79), "revoked", 1000) == kDone);
}

TEST_CASE("of a batch that comes once more only what was not given back is granted again") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  PutStart m = with_nonce(77);
  m.items = {{"a", 1000}, {"b", 1000}, {"c", 1000}};
  const PutStarted first = reply_to(c, m);
  REQUIRE(c.revoke("b", first.items.at(1).generation).ok());
  const PutStarted late = reply_to(c, m);
  CHECK(is_same(first.items[0], late.items.at(0)));
  CHECK(code_of(late.items.at(1)) == Code::kStale);
  CHECK(is_same(first.items[2], late.items.at(2)));
  CHECK(c.put("b", 1000) == kDone);
  CHECK(c.end("a", first.items[0].generation).ok());
  CHECK(c.end("c", first.items[2].generation).ok());
  // A revocation that does not fit gives nothing up, nor does one of a put without a nonce.
  const PutGrant kept = c.grant(with_nonce(90), "kept", 1000);
  (void)c.revoke("kept", first.items[0].generation);
  CHECK(is_same(kept, c.grant(with_nonce(90), "kept", 1000)));
  REQUIRE(c.revoke("old", c.grant("old", 1000).generation).ok());
  CHECK(c.put("old", 1000) == kDone);
}

TEST_CASE("a put whose client asks again has its whole time from then on, one discarded none") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant late = c.grant(with_nonce(77), "late", 1000);
  const PutGrant slow = c.grant(with_nonce(78), "slow", 1000);
  c.run_until(c.now + 20s);
  CHECK(is_same(late, c.grant(with_nonce(77), "late", 1000)));
  c.run_until(c.now + 20s);
  CHECK(c.master->totals().puts_discarded == 1);
  CHECK(c.end("late", late.generation).ok());
  const PutGrant anew = c.grant(with_nonce(78), "slow", 1000);
  REQUIRE(anew.outcome.ok());
  CHECK(anew.generation != slow.generation);
  CHECK(anew.places[0].offset != slow.places[0].offset);  // which its writer may still write
  CHECK(Code{c.end("slow", slow.generation).code} == Code::kStale);
}

TEST_CASE("a put-start that is repeated for ever holds its key for two put-discards at most") {
  for (const Duration pause : {Duration(20s), Duration(300us)}) {  // whole milliseconds, and parts
    FakeCluster c;
    c.add("n", 64 * kMiB);
    const PutGrant first = c.grant(with_nonce(77), "k", 1000);
    const Time granted = c.now;
    REQUIRE(c.grant(with_nonce(78), "other", 1000).outcome.ok());
    if (pause < 1s)
      for (int i = 0; i < 50'000; ++i) {  // takes 15 s
        c.now += pause;
        (void)c.grant(with_nonce(77), "k", 1000);
      }
    while (c.now < granted + 40s) {
      c.run_until(c.now + 10s);
      CHECK(is_same(first, c.grant(with_nonce(77), "k", 1000)));
    }
    c.run_until(granted + 2 * c.options_used.put_discard);
    CHECK(c.master->totals().puts_discarded == 2);
    CHECK(c.stat().writing == 0);
    const PutGrant anew = c.grant(with_nonce(79), "k", 1000);
    REQUIRE(anew.outcome.ok());
    CHECK(c.end("k", anew.generation).ok());
    CHECK(c.get("k").outcome.ok());
    CHECK(Code{c.end("k", first.generation).code} == Code::kStale);
  }
}

TEST_CASE("a retry that finds its object removed meanwhile leaves no grant of its own behind") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant stored = c.grant(with_nonce(77), "k", 1000);
  REQUIRE(c.end("k", stored.generation).ok());  // the answer is lost
  REQUIRE(c.remove("k")->ok());
  // Of the next round too, whose first put-start comes before another removal.
  const PutGrant anew = c.grant(with_nonce(78), "other", 1000, stored.generation);
  REQUIRE(anew.outcome.ok());
  REQUIRE(c.remove("other"));
  CHECK(code_of(c.grant(with_nonce(78), "other", 1000, stored.generation)) == Code::kExists);
  CHECK(c.stat().writing == 0);
  CHECK(c.stat().tenants[0].used == 0);
  CHECK(Code{c.end("other", anew.generation).code} == Code::kStale);
  CHECK(c.put("other", 1000) == kDone);
  // Another's grant stays.
  const PutGrant others = c.grant(with_nonce(80), "k", 1000);
  REQUIRE(others.outcome.ok());
  CHECK(code_of(c.grant(with_nonce(81), "k", 1000, stored.generation)) == Code::kExists);
  CHECK(c.end("k", others.generation).ok());
}

TEST_CASE("a key that a batch has twice is granted once, however often the batch is sent") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  PutStart m = with_nonce(UINT64_MAX - 1);
  m.items = {{"a", 1000}, {"k", 1000}, {"k", 1000}, {"k", 1000}, {"b", 1000}};
  std::vector<PutStarted> replies;
  for (int i = 0; i < 3; ++i)
    c.master->handle(m, c.now, [&](const Result<PutStarted>& r) { replies.push_back(r.value()); });
  REQUIRE(replies.size() == 3);
  for (const PutStarted& reply : replies) {
    CHECK(is_same(reply.items[1], replies[0].items[1]));
    CHECK(code_of(reply.items[2]) == Code::kBusy);
    CHECK(code_of(reply.items[3]) == Code::kBusy);
    CHECK(is_same(reply.items[0], replies[0].items[0]));
    CHECK(is_same(reply.items[4], replies[0].items[4]));
  }
  CHECK(c.stat().writing == 3);
}

TEST_CASE("tries of one put that wait for space are granted the same") {
  FakeCluster c;
  c.add("n", 4 * kPage);
  REQUIRE(c.put("full", 4 * kPage) == kDone);
  REQUIRE(c.get("full").outcome.ok());  // leased
  PutStart m = with_nonce(77);
  m.items = {{"k", 2 * kPage}};
  m.wait_ms = 60'000;
  std::vector<PutStarted> replies;
  for (int i = 0; i < 2; ++i)
    c.master->handle(m, c.now, [&](const Result<PutStarted>& r) { replies.push_back(r.value()); });
  CHECK(replies.empty());
  c.run_until(c.now + 11s);
  REQUIRE(replies.size() == 2);
  CHECK(is_same(replies[0].items[0], replies[1].items[0]));
}

TEST_CASE("of a batch that waits for space what was granted is granted again, and the rest comes") {
  FakeCluster c;
  c.add("n", 4 * kPage);
  REQUIRE(c.put("full", 3 * kPage) == kDone);
  REQUIRE(c.get("full").outcome.ok());  // leased
  PutStart m = with_nonce(77);
  m.items = {{"fits", kPage}, {"waits", 2 * kPage}};
  m.wait_ms = 60'000;
  std::vector<PutStarted> replies;
  for (int i = 0; i < 2; ++i)
    c.master->handle(m, c.now, [&](const Result<PutStarted>& r) { replies.push_back(r.value()); });
  CHECK(replies.empty());
  CHECK(c.stat().writing == 1);
  c.run_until(c.now + 11s);
  REQUIRE(replies.size() == 2);
  for (const size_t item : {0u, 1u}) {
    CHECK(is_same(replies[0].items[item], replies[1].items[item]));
    CHECK(nodes_of(replies[1], item) == std::vector<NodeId>{"n"});
  }
}

TEST_CASE("a lost node's part of a grant is not granted again, nor anything by another master") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  const PutGrant first = c.grant(with_nonce(77, 2), "k", 1000);
  REQUIRE(first.places.size() == 2);
  REQUIRE(c.master->handle(Unmount{"a", Generation{7}}, c.now));
  PutStart m = with_nonce(77, 2);
  m.items = {{"k", 1000}};
  const PutStarted left = reply_to(c, m);
  REQUIRE(left.items[0].outcome.ok());
  CHECK(left.items[0].generation == first.generation);
  CHECK(nodes_of(left) == std::vector<NodeId>{"b"});
  c.nodes.erase("a");
  c.restart_master(kEpoch + 10);  // nonces are lost, and so are the grants
  const PutGrant anew = c.grant(with_nonce(77, 2), "k", 1000);
  REQUIRE(anew.outcome.ok());
  CHECK(anew.generation != first.generation);
  CHECK(Code{c.end("k", first.generation).code} == Code::kStale);
  CHECK(c.end("k", anew.generation).ok());
}

TEST_CASE("a put-end that is sent again after a removal does not put the value again") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant g = c.grant(with_nonce(77), "k", 1000);
  REQUIRE(c.end("k", g.generation).ok());  // the answer is lost
  CHECK(c.end("k", g.generation).ok());
  REQUIRE(c.remove("k")->ok());
  CHECK(Code{c.end("k", g.generation).code} == Code::kStale);
  CHECK(code_of(c.grant(with_nonce(78), "k", 1000, g.generation)) == Code::kExists);
  CHECK_FALSE(c.has("k"));
}

TEST_CASE(
    "a put that its client gave up by its nonce leaves its keys free, and nothing of others") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  PutStart m = with_nonce(77, 2);
  m.items = {{"k", 1000}, {"of another", 1000}, {"l", 2000}, {"stored", 10}};
  m.tenant = "t";
  PutStart other = with_nonce(1000);
  other.tenant = "t";
  const PutGrant others = c.grant(other, "of another", 1000);
  REQUIRE(c.put(other, "stored", 10) == kDone);
  const PutStarted lost = reply_to(c, m);
  REQUIRE(lost.items[0].outcome.ok());
  REQUIRE(lost.items[2].outcome.ok());
  CHECK(c.stat().writing == 3);
  for (int i = 0; i < 2; ++i) {  // sent again, it does the same
    give_up(c, m);
    CHECK(c.stat().writing == 1);
  }
  CHECK(Code{c.end("k", lost.items[0].generation, 1, "t").code} == Code::kStale);
  PutStart next = with_nonce(1002);
  next.tenant = "t";
  CHECK(c.put(next, "k", 1000) == kDone);
  CHECK(c.put(next, "l", 1000) == kDone);
  CHECK(c.end("of another", others.generation, 1, "t").ok());
  CHECK(c.stat().tenants[1].objects == 4);
  give_up(c, m);  // late: what was put since stays
  CHECK(c.stat().tenants[1].objects == 4);
}

TEST_CASE("a put-start that comes behind its own revocation is granted nothing") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  PutStart m = with_nonce(77);
  m.items = {{"k", 1000}, {"l", 1000}};
  give_up(c, m);
  for (int i = 0; i < 2; ++i)
    for (const PutGrant& grant : reply_to(c, m).items) CHECK(code_of(grant) == Code::kStale);
  CHECK(c.stat().writing == 0);
  CHECK(c.put("k", 1000) == kDone);
  // Others are not refused, nor is one without a nonce.
  give_up(c, PutStart{});
  CHECK(c.grant(with_nonce(78), "l", 1000).outcome.ok());
  CHECK(c.grant(with_nonce(0), "old", 1000).outcome.ok());
}

TEST_CASE("a put that waits for space and is given up waits no more, and evicts nothing") {
  FakeCluster c;
  c.add("n", 4 * kPage);
  REQUIRE(c.put("full", 3 * kPage) == kDone);
  REQUIRE(c.get("full").outcome.ok());  // leased
  PutStart m = with_nonce(77);
  m.items = {{"fits", kPage}, {"waits", 3 * kPage}};
  m.wait_ms = 60'000;
  std::optional<PutStarted> reply;
  c.master->handle(m, c.now, [&](const Result<PutStarted>& r) { reply = *r; });
  REQUIRE_FALSE(reply);
  give_up(c, m);
  REQUIRE(reply);
  CHECK(code_of(reply->items[1]) == Code::kStale);
  CHECK(c.stat().writing == 0);
  c.run_until(c.now + 11s);  // the lease is over
  CHECK(c.has("full"));
  CHECK(c.stat().evicted_objects == 0);
}

TEST_CASE("nonces of puts that were given up are kept for a put-discard, so many at most") {
  Table table;
  Grants grants(table.slab(), 30s);
  for (uint64_t nonce = 1; nonce <= Grants::kGivenUpMax; ++nonce) grants.give_up(nonce, t0);
  CHECK(grants.given_up(1));
  grants.give_up(1, t0);
  CHECK(grants.given_up(2));
  grants.give_up(UINT64_MAX, t0 + 1s);
  CHECK_FALSE(grants.given_up(1));
  CHECK(grants.given_up(2));
  grants.give_up(UINT64_MAX - 1, t0 + 31s);
  CHECK_FALSE(grants.given_up(2));
  CHECK(grants.given_up(UINT64_MAX));
  CHECK_FALSE(grants.given_up(0));
}

TEST_CASE("a put-start of an older client has no nonce") {
  const std::string sent =
      "\x9c\x91\x93\xa1m\x0e\x0f\x02\xa1"
      "c\x04\xa1"
      "e\xa1"
      "f\xc3\x08\x09\x0a\xa1k\xc3";
  const auto read = wire::decode<PutStart>(sent);
  REQUIRE(read);
  CHECK(read->items.at(0).tried == Generation{15});
  CHECK(read->group == "k");
  CHECK(read->promote);
  CHECK(read->nonce == 0);
}

TEST_CASE("nodes are not told nonces") {
  FakeCluster c;
  FakeNode& n = c.add("n", 64 * kMiB);
  const PutGrant g = c.grant(with_nonce(77), "k", 1000);
  REQUIRE(c.master->handle(PutRevoke{{{"k", g.generation, 0}}}, c.now));
  REQUIRE(n.inbox);
  REQUIRE(n.inbox->orders.size() == 1);
  const Order& order = n.inbox->orders[0];
  CHECK(order.record.generation == g.generation);
  CHECK(order.record.checksum == 0);
}

}  // namespace mc::store
