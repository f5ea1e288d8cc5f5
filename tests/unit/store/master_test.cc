#include "store/master/master.h"

#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

TEST_CASE("a put is invisible until it ended, then readable where it was granted") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant g = c.grant("k", 1000);
  REQUIRE(g.outcome.ok());
  CHECK_FALSE(c.has("k"));
  CHECK(c.get("k").outcome.code == static_cast<uint8_t>(Code::kNotFound));
  CHECK(c.end("k", g.generation, 42).ok());
  const Located at = c.get("k");
  CHECK(at.bytes == 1000);
  CHECK(at.checksum == 42);
  CHECK(at.generation == g.generation);
  CHECK(at.places[0].offset == g.places[0].offset);
  CHECK(at.places[0].guard == g.places[0].guard);
}

TEST_CASE("a put is published only after its node has recorded it") {
  FakeCluster c;
  FakeNode& n = c.add("n", 64 * kMiB);
  const PutGrant g = c.grant("k", 1000);
  bool answered = false;
  c.master->handle(PutEnd{{{"k", g.generation, 1}}}, c.now,
                   [&](const Result<Outcomes>&) { answered = true; });
  CHECK_FALSE(answered);
  CHECK_FALSE(c.has("k"));
  CHECK(n.directory.objects() == 0);
  c.pump();
  CHECK(answered);
  CHECK(n.directory.objects() == 1);
}

TEST_CASE("put of a stored key says so, of a key being written that it is busy") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant g = c.grant("k", 10);
  CHECK(c.put("k", 10) == Code::kBusy);
  c.end("k", g.generation);
  CHECK(c.put("k", 10) == Code::kExists);
}

TEST_CASE("put-end and put-revoke are idempotent, and a put-end of another grant is stale") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant g = c.grant("k", 10);
  CHECK(c.end("k", Generation{g.generation.n + 1}).code == static_cast<uint8_t>(Code::kStale));
  CHECK(c.end("k", g.generation).ok());
  CHECK(c.end("k", g.generation).ok());
  CHECK(c.end("k", g.generation, 99).code == static_cast<uint8_t>(Code::kInvalid));
  CHECK(c.revoke("k", g.generation).code == static_cast<uint8_t>(Code::kInvalid));
  const PutGrant h = c.grant("h", 10);
  CHECK(c.revoke("h", h.generation).ok());
  CHECK(c.revoke("h", h.generation).ok());
  CHECK(c.end("h", h.generation).code == static_cast<uint8_t>(Code::kStale));
  CHECK(c.stat().used == kPage);  // only k
}

TEST_CASE("generations grow, by put and by epoch") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const auto a = c.grant("a", 1).generation, b = c.grant("b", 1).generation;
  CHECK(a < b);
  CHECK((a.n >> 32) == kEpoch);
}

TEST_CASE("an abandoned put is discarded, and its range is quarantined before reuse") {
  MasterOptions options;
  options.put_discard = 30s;
  FakeCluster c(options);
  c.add("n", 4 * kPage);
  const PutGrant g = c.grant("k", 3 * kPage);
  c.run_until(t0 + 31s);
  CHECK(c.end("k", g.generation).code == static_cast<uint8_t>(Code::kStale));
  CHECK(c.put("other", 3 * kPage) == Code::kNoSpace);  // the writer may still write there
  c.run_until(t0 + 61s);
  CHECK(c.put("other", 3 * kPage) == kDone);
}

TEST_CASE("an abandoned put whose node died does not affect the node that returned") {
  FakeCluster c;
  c.add("n", 4 * kPage);
  c.grant("k", 3 * kPage);
  c.run_until(t0 + 31s);  // discarded, in quarantine
  c.mount(*c.nodes["n"]);
  CHECK(c.put("other", 3 * kPage) == kDone);
  c.run_until(t0 + 90s);
  CHECK(c.has("other"));
}

TEST_CASE("leased objects are neither removed nor evicted, unless forced") {
  FakeCluster c;
  c.add("n", 4 * kPage);
  REQUIRE(c.put("k", 3 * kPage) == kDone);
  c.get("k");
  c.now += 1234567ns;
  CHECK(c.remove("k")->code == static_cast<uint8_t>(Code::kBusy));
  CHECK(c.remove("k")->what.find('.') == std::string::npos);  // whole milliseconds
  CHECK(c.put("other", 3 * kPage) == Code::kNoSpace);
  CHECK(c.has("k"));
  CHECK(c.remove("k", true)->ok());
  CHECK_FALSE(c.has("k"));
  CHECK(c.put("other", 3 * kPage) == kDone);
}

TEST_CASE("a put parks until the lease that is in its way ends") {
  MasterOptions options;
  options.lease_ttl = 50ms;
  FakeCluster c(options);
  c.add("n", 4 * kPage);
  REQUIRE(c.put("k", 3 * kPage) == kDone);
  c.get("k");
  CHECK(c.put("other", 3 * kPage) == kDone);
  CHECK(c.now >= t0 + 50ms);
  CHECK_FALSE(c.has("k"));
}

TEST_CASE("a full pool evicts the least recently used, and reading counts as use") {
  MasterOptions options;
  options.lease_ttl = 1ms;
  FakeCluster c(options);
  c.add("n", 10 * kPage);
  for (int i = 0; i < 9; ++i) REQUIRE(c.put("k" + std::to_string(i), 1) == kDone);
  c.get("k0");
  c.run_until(c.now + 10ms);
  REQUIRE(c.put("new0", 1) == kDone);
  REQUIRE(c.put("new1", 1) == kDone);
  CHECK(c.has("k0"));
  CHECK_FALSE(c.has("k1"));
  CHECK(c.has("new1"));
}

TEST_CASE("background eviction: above the watermark space is freed before a put needs it") {
  FakeCluster c;
  c.add("n", 100 * kPage);
  for (int i = 0; i < 96; ++i) REQUIRE(c.put("k" + std::to_string(i), 1) == kDone);
  CHECK(c.stat().used == 90 * kPage);
  CHECK(c.stat().evicted_objects == 6);
}

TEST_CASE("an object larger than the reserve survives its own put") {
  FakeCluster c;
  c.add("n", 100 * kPage);
  CHECK(c.put("big", 99 * kPage) == kDone);
  CHECK(c.has("big"));
}

TEST_CASE("evicted and removed objects leave the node before their room is used again") {
  FakeCluster c;
  FakeNode& n = c.add("n", 4 * kPage);
  REQUIRE(c.put("a", 4 * kPage) == kDone);
  std::optional<PutStarted> started;
  c.master->handle(PutStart{{{"b", 4 * kPage}}, 1, {}, 0}, c.now,
                   [&](const Result<PutStarted>& r) { started = *r; });
  CHECK_FALSE(started);  // evicted, but the node has not acknowledged
  CHECK_FALSE(c.has("a"));
  CHECK(n.directory.objects() == 1);
  c.pump();
  REQUIRE(started);
  CHECK(started->items[0].outcome.ok());
  CHECK(n.directory.objects() == 0);
}

TEST_CASE("a value larger than the pool is refused at once, naming the pool") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant g = c.grant("k", 65 * kMiB);
  CHECK(g.outcome.code == static_cast<uint8_t>(Code::kNoSpace));
  CHECK(g.outcome.what.find("64.0 MiB") != std::string::npos);
  CHECK(c.now == t0);
  CHECK(c.put("k", UINT64_MAX) == Code::kNoSpace);
}

TEST_CASE("without a node a put is unavailable after its wait") {
  FakeCluster c;
  const PutGrant g = c.grant("k", 1);
  CHECK(g.outcome.code == static_cast<uint8_t>(Code::kUnavailable));
  CHECK(c.now == t0 + 100ms);
}

TEST_CASE("bad keys are refused one by one, good ones of the same batch are served") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  std::optional<PutStarted> reply;
  c.master->handle(
      PutStart{
          {{"", 1}, {std::string(1025, 'x'), 1}, {std::string("a\0b", 3), 1}, {"ok", 1}}, 1, {}, 0},
      c.now, [&](const Result<PutStarted>& r) { reply = *r; });
  REQUIRE(reply);
  for (int i = 0; i < 3; ++i)
    CHECK(reply->items[static_cast<size_t>(i)].outcome.code ==
          static_cast<uint8_t>(Code::kInvalid));
  CHECK(reply->items[3].outcome.ok());
}

TEST_CASE("replicas lie on different nodes, and fewer are granted when there are fewer nodes") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  CHECK(c.grant("one", 1, 2).places.size() == 1);
  c.add("b", 64 * kMiB);
  REQUIRE(c.put("two", 1, 1, 2) == kDone);
  const Located at = c.get("two");
  REQUIRE(at.places.size() == 2);
  CHECK(at.places[0].node != at.places[1].node);
  CHECK(c.nodes["a"]->directory.objects() == 1);
  CHECK(c.nodes["b"]->directory.objects() == 1);
}

TEST_CASE("a node that dies costs what it held alone and nothing else") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  REQUIRE(c.put("both", 1, 1, 2) == kDone);
  for (int i = 0; i < 40; ++i) REQUIRE(c.put("k" + std::to_string(i), 1) == kDone);
  const size_t on_a = c.nodes["a"]->directory.objects() - 1;
  c.nodes["a"]->inbox.reset();
  auto gone = std::move(c.nodes["a"]);
  c.nodes.erase("a");
  c.run_until(t0 + 5s);
  CHECK(c.get("both").places.size() == 2);  // only suspect yet
  c.run_until(t0 + 12s);
  CHECK(c.get("both").places.size() == 1);
  CHECK(c.stat().objects == 41 - on_a);
  CHECK(c.stat().nodes.size() == 1);
}

TEST_CASE("a master that stood still gives up no node, and trusts them all at once") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  REQUIRE(c.put("k", 1) == kDone);
  c.run_until(t0 + 2s);
  c.now += 1h;
  CHECK(c.put("before the first tick", 1) == kDone);  // not suspect either
  c.master->tick(c.now);
  c.pump();
  CHECK(c.master->totals().nodes_expired == 0);
  CHECK(c.has("k"));
  c.run_until(c.now + 20s);
  CHECK(c.stat().nodes.size() == 1);
}

TEST_CASE("a suspect node gets nothing new and is read last") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  REQUIRE(c.put("both", 1, 1, 2) == kDone);
  for (const char* suspect : {"a", "b"}) {
    c.run_until(c.now + 1s);  // both are heard
    REQUIRE(c.master->handle(ReportNode{suspect, Generation{7}}, c.now));
    std::optional<Replicas> reply;
    c.master->handle(GetReplicas{{"both"}, 0}, c.now,
                     [&](const Result<Replicas>& r) { reply = *r; });
    CHECK(reply->nodes[reply->items[0].places[0].node].name != suspect);
    std::optional<PutStarted> put;
    c.master->handle(PutStart{{{std::string("on-") + suspect, 1}}, 2, {}, 0}, c.now,
                     [&](const Result<PutStarted>& r) { put = *r; });
    REQUIRE(put);
    REQUIRE(put->nodes.size() == 1);
    CHECK(put->nodes[0].name != suspect);
  }
}

TEST_CASE("put-end to a node that dies is unavailable, not lost") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  const PutGrant g = c.grant("k", 1);
  std::optional<Outcome> answer;
  c.nodes.clear();
  c.master->handle(PutEnd{{{"k", g.generation, 1}}}, c.now + 0s,
                   [&](const Result<Outcomes>& r) { answer = r->items[0]; });
  c.run_until(t0 + 15s);
  REQUIRE(answer);
  CHECK(answer->code == static_cast<uint8_t>(Code::kUnavailable));
  CHECK(c.stat().writing == 0);
}

TEST_CASE("match-prefix stops at the first hole and leases what it matched") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  for (const char* k : {"0", "1", "3"}) REQUIRE(c.put(k, 1) == kDone);
  CHECK(c.master->handle(MatchPrefix{{"0", "1", "2", "3"}}, c.now)->hits == 2);
  CHECK(c.master->handle(MatchPrefix{{"0"}}, c.now)->places.bytes.empty());  // nobody asked
  const auto places =
      c.master->handle(MatchPrefix{{"0", "1", "2"}, {}, true, "some host"}, c.now)->places.bytes;
  CHECK(places == std::string(2, static_cast<char>(StoredAt::kMemory)));
  CHECK(c.remove("1")->code == static_cast<uint8_t>(Code::kBusy));
  CHECK(c.remove("3")->ok());
  CHECK(c.master->handle(MatchPrefix{{}}, c.now)->hits == 0);
}

TEST_CASE("match-prefix names the nodes that have the keys, so far as there is room for names") {
  FakeCluster c;
  const auto put_at = [&](const ObjectKey& key, const NodeId& node) {
    PutStart m;
    m.prefer = node;
    REQUIRE(c.put(m, key, 1) == kDone);
  };
  c.add("n1", 64 * kMiB);
  c.add("n2", 64 * kMiB);
  put_at("0", "n2");
  put_at("1", "n1");
  put_at("2", "n2");
  const auto all = c.master->handle(MatchPrefix{{"0", "1", "2"}, {}, true, ""}, c.now);
  CHECK(all->nodes == std::vector<NodeId>{"n2", "n1"});
  CHECK(all->holders.bytes == std::string("\1\2\1"));
  CHECK(c.master->handle(MatchPrefix{{"0"}}, c.now)->holders.bytes.empty());  // nobody asked
  REQUIRE(c.put("on both", 1, 1, 2) == kDone);  // the reader chooses one of them
  const auto two = c.master->handle(MatchPrefix{{"on both", "1"}, {}, true, ""}, c.now);
  CHECK(two->holders.bytes == std::string("\0\1", 2));
  CHECK(two->nodes == std::vector<NodeId>{"n1"});
  std::vector<ObjectKey> keys;
  for (size_t i = 0; i <= kHoldersMax; ++i) {
    const std::string node = "m" + std::to_string(i);
    c.add(node, 64 * kMiB);
    put_at(keys.emplace_back("on-" + node), node);
  }
  const auto many = c.master->handle(MatchPrefix{keys, {}, true, ""}, c.now);
  CHECK(many->nodes.size() == kHoldersMax);
  CHECK(many->holders.bytes.substr(kHoldersMax - 1) == std::string("\377\0", 2));
}

TEST_CASE("a list names the node of what only one has, and so do events") {
  FakeCluster c;
  c.add("n1", 64 * kMiB);
  c.add("n2", 64 * kMiB);
  PutStart one;
  one.prefer = "n2";
  REQUIRE(c.put(one, "one", 1) == kDone);
  PutStart two;
  two.replicas = 2;
  REQUIRE(c.put(two, "two", 1) == kDone);
  std::vector<ObjectInfo> items;
  c.master->handle(List{"", "", 10}, c.now, [&](const Result<Listed>& r) { items = r->items; });
  REQUIRE(items.size() == 2);
  CHECK(items[0].node == "n2");
  CHECK(items[1].node.empty());
  const auto events = c.master->handle(Replay{1, 10}, c.now)->events;
  REQUIRE(events.size() == 2);
  CHECK(events[0].nodes == "n2");
  CHECK(events[1].nodes.size() == 5);  // both names
}

TEST_CASE("match-blocks counts a block that is stored under every prefix, and leases those") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const std::string a = "\x01\xab", b = "\x02\xcd", d = "\x03\xef";
  for (const char* k : {"tp0@01ab", "tp1@01ab", "tp0@02cd", "tp0@03ef", "tp1@03ef"})
    REQUIRE(c.put(k, 1) == kDone);
  const auto hits = [&](std::vector<std::string> prefixes, std::string hashes) {
    return c.master->handle(MatchBlocks{std::move(prefixes), {std::move(hashes)}, 2}, c.now)->hits;
  };
  CHECK(hits({"tp0@", "tp1@"}, a + b + d) == 1);
  for (const char* k : {"tp0@01ab", "tp1@01ab"})
    CHECK(c.remove(k)->code == static_cast<uint8_t>(Code::kBusy));
  for (const char* k : {"tp0@02cd", "tp1@03ef"}) CHECK(c.remove(k)->ok());
  CHECK(hits({"tp0@"}, d + d) == 2);
  CHECK(hits({"tp0@"}, "") == 0);
  CHECK(hits({"other@"}, a) == 0);
  // More blocks than are looked up together.
  std::string many;
  for (int i = 0; i < 200; ++i) {
    const std::string hash{static_cast<char>(i), 'x'};
    REQUIRE(c.put("m" + hex({reinterpret_cast<const uint8_t*>(hash.data()), 2}), 1) == kDone);
    many += hash;
  }
  CHECK(hits({"m"}, many) == 200);
  CHECK(hits({"m", "m", "m"}, many) == 200);
  const auto refused = [&](MatchBlocks m) {
    const auto reply = c.master->handle(m, c.now);
    return !reply && reply.error().code == Code::kInvalid;
  };
  CHECK(refused({{}, {a}, 2}));
  CHECK(refused({{"p"}, {a}, 0}));
  CHECK(refused({{"p"}, {a + "x"}, 2}));
  CHECK(refused({{"p"}, {std::string(2 * kHashBytesMax, 'x')}, 2 * kHashBytesMax}));
  CHECK(refused({{"p", "q"}, {std::string(kBatchMax, 'x')}, 1}));
}

TEST_CASE("calls that wait keep 64 MiB of the master's memory at most") {
  FakeCluster c;
  c.add("n", 16 * kPage);
  GetReplicas look{{}, 60'000};
  for (int i = 0; i < 16'384; ++i) look.keys.push_back(std::string(800, 'k') + std::to_string(i));
  size_t answered = 0;
  const auto ask = [&] {
    c.master->handle(look, c.now, [&](const Result<Replicas>& r) { answered += r ? 1 : 0; });
  };
  for (int i = 0; i < 10; ++i) ask();
  CHECK(answered == 9);  // at once: what they ask for is not there
  // Puts that wait count too.
  PutStart put;
  put.replicas = 1;
  for (const ObjectKey& key : look.keys) put.items.push_back({key, 4 * kPage, {}});
  size_t refused = 0;
  const auto start = [&] {
    c.master->handle(put, c.now, [&](const Result<PutStarted>& r) { refused += r ? 1 : 0; });
  };
  for (int i = 0; i < 4; ++i) start();
  CHECK(refused >= 2);
  const size_t waiting = 4 - refused;
  // When they are over there is room again.
  c.run_until(c.now + 61s);
  CHECK(answered == 10);
  CHECK(refused == 4);
  CHECK(waiting > 0);
  ask();
  CHECK(answered == 10);
}

TEST_CASE("who only reads does not use up the tenants") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  for (const uint32_t wait : {0u, 1u})
    for (size_t i = 0; i < Tenants::kMax; ++i)
      c.master->handle(GetReplicas{{"k"}, wait, "guessed" + std::to_string(i)}, c.now,
                       [](const Result<Replicas>&) {});
  c.run_until(c.now + 1s);
  PutStart put;
  put.tenant = "new";
  CHECK(c.put(put, "k", 1) == kDone);
  std::optional<Replicas> got;
  c.master->handle(GetReplicas{{"k"}, 0, "new"}, c.now,
                   [&](const Result<Replicas>& r) { got = *r; });
  REQUIRE(got);
  CHECK(got->items[0].outcome.ok());
  c.master->handle(GetReplicas{{"k"}, 0, "unknown"}, c.now,
                   [&](const Result<Replicas>& r) { got = *r; });
  CHECK(got->items[0].outcome.code == static_cast<uint8_t>(Code::kNotFound));
}

TEST_CASE("a get that waits is answered by the last key it waits for, or by its deadline") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  REQUIRE(c.put("a", 1) == kDone);
  std::optional<Replicas> first, second;
  c.master->handle(GetReplicas{{"a", "b", "b"}, 500}, c.now,
                   [&](const Result<Replicas>& r) { first = *r; });
  c.master->handle(GetReplicas{{"b", "never"}, 500}, c.now,
                   [&](const Result<Replicas>& r) { second = *r; });
  CHECK_FALSE(first);
  REQUIRE(c.put("b", 1) == kDone);
  REQUIRE(first);
  CHECK(first->items[2].outcome.ok());
  CHECK_FALSE(second);
  c.run_until(t0 + 500ms);
  REQUIRE(second);
  CHECK(second->items[0].outcome.ok());
  CHECK(second->items[1].outcome.code == static_cast<uint8_t>(Code::kNotFound));
}

TEST_CASE("ls lists by prefix, in pages, complete objects only") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  for (const char* k : {"b/2", "a/1", "b/1", "b/3", "c"}) REQUIRE(c.put(k, 1) == kDone);
  c.grant("b/4", 1);
  auto page = c.look(List{"b/", "", 2});
  REQUIRE(page->items.size() == 2);
  CHECK(page->items[0].key == "b/1");
  CHECK(page->more);
  page = c.look(List{"b/", page->items[1].key, 2});
  REQUIRE(page->items.size() == 1);
  CHECK(page->items[0].key == "b/3");
  CHECK_FALSE(page->more);
  CHECK(c.look(List{"", "", 100})->items.size() == 5);
}

TEST_CASE("orders whose answer was lost are sent again and change nothing twice") {
  FakeCluster c;
  FakeNode& n = c.add("n", 64 * kMiB);
  const PutGrant g = c.grant("k", 1);
  std::optional<Outcome> answer;
  c.master->handle(PutEnd{{{"k", g.generation, 1}}}, c.now,
                   [&](const Result<Outcomes>& r) { answer = r->items[0]; });
  REQUIRE(n.inbox);
  const HeartbeatReply lost = *n.inbox;
  for (const Order& o : lost.orders) REQUIRE(n.directory.carry_out(o));
  n.inbox.reset();  // carried out, but the acknowledgement never left
  c.beat(n);
  CHECK_FALSE(answer);
  c.pump();
  REQUIRE(answer);
  CHECK(n.directory.objects() == 1);
}

TEST_CASE("F1: a range with a late writer stays out of use, and holds up no other") {
  FakeCluster c;
  FakeNode& n = c.add("n", 2 * kMiB);
  const PutGrant late = c.grant("late", 1536 * kKiB);
  REQUIRE(late.outcome.ok());
  n.still_writes = true;
  CHECK(c.revoke("late", late.generation).ok());
  n.still_writes = false;
  CHECK(c.put("large", 1 * kMiB) == Code::kNoSpace);
  CHECK(c.put("small", 100 * kKiB) == kDone);  // its order is acknowledged
  CHECK(c.remove("small", true)->ok());
  CHECK(c.put("small", 500 * kKiB) == kDone);
  CHECK(c.put("large", 1 * kMiB) == Code::kNoSpace);
  // A heartbeat that was sent before the order comes late: it does not name the range.
  c.master->handle(Heartbeat{"n", n.ref.generation, 0, 1000}, c.now,
                   [](const Result<HeartbeatReply>&) {});
  CHECK(c.put("large", 1 * kMiB) == Code::kNoSpace);
  n.unfenced.clear();
  c.beat(n);
  c.pump();
  CHECK(c.put("large", 1 * kMiB) == kDone);
}

TEST_CASE("F1: who removes an object need not wait for a writer that stands still") {
  FakeCluster c;
  FakeNode& n = c.add("n", 2 * kMiB);
  CHECK(c.put("k", 1 * kMiB) == kDone);
  n.still_writes = true;
  const auto removed = c.remove("k", true);
  REQUIRE(removed);
  CHECK(removed->ok());
  CHECK(c.put("other", 1536 * kKiB) == Code::kNoSpace);
}

TEST_CASE("F1: a master that starts keeps out of use what a node says is still written") {
  FakeCluster c;
  FakeNode& n = c.add("n", 2 * kMiB);
  const PutGrant late = c.grant("late", 1536 * kKiB);
  n.still_written = {{late.places[0].offset, 1536 * kKiB, 0}};
  n.still_writes = true;
  c.restart_master(kEpoch + 100);
  CHECK(c.put("large", 1 * kMiB) == Code::kNoSpace);
  CHECK(n.unfenced.size() == 1);  // it was ordered to forget that
  n.still_written.clear();
  n.unfenced.clear();
  c.beat(n);
  c.pump();
  CHECK(c.put("large", 1 * kMiB) == kDone);
}

}  // namespace
}  // namespace mc::store
