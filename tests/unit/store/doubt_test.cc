// Answers of a restarted master about keys it does not know, until its nodes are back.
#include "store/metadata/rebuild.h"
#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

struct TwoNodes : FakeCluster {  // "on-a" lies on a, "on-b" on b
  TwoNodes() : FakeCluster({}, kEpoch, 1500ms) {
    for (const char* node : {"a", "b"}) {
      add(node, 64 * kMiB);
      const ObjectKey key = std::string("on-") + node;
      std::optional<PutStarted> reply;
      master->handle(PutStart{{{key, 1}}, 1, node, 0}, now,
                     [&](const Result<PutStarted>& r) { reply = *r; });
      REQUIRE(reply);
      REQUIRE(end(key, reply->items[0].generation).ok());
      REQUIRE(nodes[node]->directory.objects() == 1);
    }
    run_until(t0 + 2s);  // heartbeats told both that there are two
  }
};

TEST_CASE("until all nodes are back an unknown key is unavailable, not absent") {
  TwoNodes c;
  c.restart_master(kEpoch + 5, "b");
  CHECK(c.has("on-a"));
  CHECK(c.look(GetReplicas{{"on-a"}, 0}).has_value());
  const auto unavailable = [](const auto& answer) {
    REQUIRE_FALSE(answer.has_value());
    CHECK(answer.error().code == Code::kUnavailable);
    CHECK(answer.error().what.find("rebuilding: 1 of 2 nodes have not reported yet") == 0);
  };
  unavailable(c.look(GetReplicas{{"on-b"}, 0}));
  unavailable(c.look(GetReplicas{{"on-b", "never"}, 0}));
  unavailable(c.look(Exists{{"on-b"}}));
  unavailable(c.look(List{"", "", 10}));
  CHECK(c.remove("on-b")->code == static_cast<uint8_t>(Code::kUnavailable));
  CHECK(c.stat().rebuilding.find("1 of 2") != std::string::npos);
  CHECK(c.master->handle(MatchPrefix{{"on-a", "on-b"}}, c.now)->hits == 1);

  c.mount(*c.nodes["b"]);
  CHECK(c.stat().rebuilding.empty());
  CHECK(c.has("on-b"));
  CHECK_FALSE(c.has("never"));
  CHECK(c.get("never").outcome.code == static_cast<uint8_t>(Code::kNotFound));
  CHECK(c.list().size() == 2);
}

TEST_CASE("until all nodes are back the master answers what it knows of a batch") {
  TwoNodes c;
  c.restart_master(kEpoch + 5, "b");
  const std::string wrong(kObjectKeyBytesMax + 1, 'k');
  const auto some = c.look(GetReplicas{{"on-a", "on-b", wrong}, 0});
  REQUIRE(some);
  CHECK(some->items[0].outcome.ok());
  CHECK(some->items[0].places.size() == 1);
  CHECK(some->items[1].outcome.code == static_cast<uint8_t>(Code::kUnavailable));
  CHECK(some->items[1].outcome.what.find("rebuilding: 1 of 2 nodes have not reported yet") == 0);
  CHECK(some->items[2].outcome.code == static_cast<uint8_t>(Code::kInvalid));

  c.mount(*c.nodes["b"]);
  const auto all = c.look(GetReplicas{{"on-a", "on-b", "never"}, 0});
  REQUIRE(all);
  CHECK(all->items[1].outcome.ok());
  CHECK(all->items[2].outcome.code == static_cast<uint8_t>(Code::kNotFound));
}

TEST_CASE("a put that finds no room while nodes are missing is to be made again, not refused") {
  TwoNodes c;
  c.restart_master(kEpoch + 5, "b");
  const auto start = [&](const char* key, uint64_t bytes) {
    std::optional<PutStarted> reply;
    c.master->handle(PutStart{{{key, bytes}}, 1, "", 0}, c.now,
                     [&](const Result<PutStarted>& r) { reply = *r; });
    if (!reply) c.run_until(c.now + 200ms);  // it waits for room
    REQUIRE(reply);
    return reply->items[0].outcome;
  };
  REQUIRE(start("large", 60 * kMiB).ok());
  for (const uint64_t bytes : {60 * kMiB, 65 * kMiB}) {
    const Outcome refused = start("other", bytes);
    CHECK(refused.code == static_cast<uint8_t>(Code::kUnavailable));
    CHECK(refused.what.find("rebuilding: 1 of 2") == 0);
  }
  c.mount(*c.nodes["b"]);
  CHECK(start("other", 60 * kMiB).ok());
  CHECK(start("third", 65 * kMiB).code == static_cast<uint8_t>(Code::kNoSpace));
}

TEST_CASE("a query is held while nodes are missing, and answered as soon as its key turns up") {
  TwoNodes c;
  c.restart_master(kEpoch + 5, "b");
  int answers = 0;
  c.master->handle(Exists{{"on-b"}}, c.now, [&](const Result<Existing>& r) {
    REQUIRE(r.has_value());
    CHECK(r->items[0] == 1);
    ++answers;
  });
  CHECK(answers == 0);
  c.mount(*c.nodes["b"]);
  CHECK(answers == 1);
}

TEST_CASE("a node that stays away is given up after its time to live") {
  TwoNodes c;
  c.nodes.erase("b");
  c.restart_master(kEpoch + 5);
  CHECK(c.look(Exists{{"on-b"}}).error().code == Code::kUnavailable);
  c.run_until(c.now + 9s);
  CHECK(c.look(Exists{{"on-b"}}).error().code == Code::kUnavailable);
  c.run_until(c.now + 1s);
  CHECK_FALSE(c.has("on-b"));
  CHECK(c.has("on-a"));
}

TEST_CASE("a master killed again while it rebuilds still waits for all") {
  TwoNodes c;
  c.restart_master(kEpoch + 5, "b");
  c.run_until(c.now + 2s);
  c.nodes["b"]->inbox.reset();
  auto b = std::move(c.nodes["b"]);
  c.nodes.erase("b");
  c.restart_master(kEpoch + 9);
  CHECK(c.stat().rebuilding.find("1 of 2") != std::string::npos);
}

TEST_CASE("a master without reports of nodes doubts only for the grace period") {
  for (const bool node : {false, true}) {
    FakeCluster c({}, kEpoch, 1500ms);
    if (node) c.add("fresh", 64 * kMiB);  // it was mounted nowhere before
    const auto early = c.look(Exists{{"k"}});
    CHECK(c.now == t0 + 100ms);  // held, for clients that ask again at once
    CHECK(early.error().what.find("rebuilding: nodes may not") == 0);
    c.run_until(t0 + 1500ms);
    CHECK_FALSE(c.has("k"));
    CHECK(c.now == t0 + 1500ms);
  }
}

TEST_CASE("a waiting get outlives the rebuild") {
  FakeCluster c({}, kEpoch, 1500ms);
  c.add("n", 64 * kMiB);
  std::optional<Result<Replicas>> answer;
  c.master->handle(GetReplicas{{"k"}, 3000}, c.now, [&](const Result<Replicas>& r) { answer = r; });
  c.run_until(t0 + 2s);
  CHECK_FALSE(answer);
  REQUIRE(c.put("k", 5) == kDone);
  REQUIRE(answer);
  CHECK((*answer)->items[0].bytes == 5);
}

TEST_CASE("reports of unexpected nodes do not end a rebuild") {
  Rebuild r(1s, 10s, t0);
  r.reported("x");
  CHECK_FALSE(r.over(t0));
  r.expect(1);
  CHECK_FALSE(r.over(t0));
  r.reported("y");
  CHECK(r.over(t0));
  r.expect(2);
  r.reported("y");  // the same once more
  CHECK_FALSE(r.over(t0));
  CHECK(r.why(t0 + 9s) == "rebuilding: 1 of 2 nodes have not reported yet: retry within 1000 ms");
  CHECK(r.over(t0 + 10s));
  CHECK(r.why(t0 + 10s).empty());
  CHECK(Rebuild(0s, 10s, t0).over(t0));
}

}  // namespace
}  // namespace mc::store
