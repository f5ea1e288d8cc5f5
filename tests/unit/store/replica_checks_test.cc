// Corrupt replicas (F3): reports of readers, checks by the nodes, and what is dropped and repaired.
#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {
namespace replica_checks_test {

struct World : FakeCluster {
  World() {
    add("a", 64 * kPage);
    add("b", 64 * kPage);
  }
  // The node of the first or second replica, and its generation.
  std::pair<NodeId, Generation> replica(const ObjectKey& key, size_t n) {
    std::optional<Replicas> reply;
    master->handle(GetReplicas{{key}, 0}, now, [&](const Result<Replicas>& r) { reply = *r; });
    REQUIRE(reply->items[0].places.size() > n);
    const ReplicaLocation& place = reply->items[0].places[n];
    return {reply->nodes[place.node].name,
            place.generation ? place.generation : reply->items[0].generation};
  }
  void report(const ObjectKey& key, const NodeId& node, Generation generation) {
    REQUIRE(master->handle(ReportReplica{key, "", node, generation}, now));
    pump();
  }
  Result<rpc::Empty> answer(const NodeId& node, uint64_t task, Code code) {
    auto done = master->handle(
        TaskDone{node, Generation{7}, task, {static_cast<uint8_t>(code), "bad"}}, now);
    pump();
    return done;
  }
  std::string why(const ObjectKey& key) {
    const auto explained = master->handle(Explain{key, ""}, now);
    REQUIRE(explained);
    std::string out = explained->state;
    for (const Event& e : explained->events) out += "; " + e.reason;
    return out;
  }
  size_t places(const ObjectKey& key) { return get(key).places.size(); }
};

TEST_CASE("F3: a replica that its node finds corrupt goes, and is repaired from the other") {
  World w;
  w.copies_succeed = false;
  REQUIRE(w.put("k", 3 * kPage, 1, 2) == kDone);
  const auto [node, generation] = w.replica("k", 1);
  w.report("k", node, generation);
  REQUIRE(w.checks.size() == 1);  // of that node alone
  CHECK(w.checks[0].first == node);
  CHECK(w.places("k") == 2);  // until the node has said so
  CHECK(w.answer(node, w.checks[0].second, Code::kCorrupt));
  CHECK(w.places("k") == 1);
  CHECK(w.replica("k", 0).first != node);
  CHECK_MESSAGE(w.why("k").find("corrupt: node " + node) != std::string::npos, w.why("k"));
  REQUIRE(w.copies_open.size() == 1);  // on its way already
  CHECK(w.nodes[node]->directory.objects() == 0);
  CHECK(w.master->totals().corrupt == 1);
}

TEST_CASE("F3: the last replica goes too, and mc-store why says so") {
  World w;
  REQUIRE(w.put("k", kPage) == kDone);
  const auto [node, generation] = w.replica("k", 0);
  w.report("k", node, generation);
  CHECK(w.answer(node, w.checks[0].second, Code::kCorrupt));
  CHECK(!w.has("k"));
  CHECK_MESSAGE(w.why("k").find("not stored; corrupt: node " + node) == 0, w.why("k"));
  CHECK(w.put("k", kPage) == kDone);  // it may be put again
}

TEST_CASE("F3: a client that lies costs a node a bounded number of checks, and no replica") {
  World w;
  for (int i = 0; i < 30; ++i) REQUIRE(w.put("k" + std::to_string(i), kPage, 1, 2) == kDone);
  const auto [node, generation] = w.replica("k0", 0);
  for (int i = 0; i < 10; ++i) w.report("k0", node, generation);
  CHECK(w.checks.size() == 1);
  w.report("k0", node, Generation{generation.n + 1});  // no such replica
  w.report("k0", "nobody", generation);
  w.report("none", node, generation);
  CHECK(w.checks.size() == 1);
  CHECK(w.answer(node, w.checks[0].second, Code{}));
  CHECK(w.places("k0") == 2);
  // A verdict that nobody asked for, a second one, and one of another node.
  CHECK(!w.answer(node, w.checks[0].second, Code::kCorrupt));
  CHECK(!w.answer(node, w.checks[0].second + 1, Code::kCorrupt));
  w.report("k1", node, w.replica("k1", 0).second);
  REQUIRE(w.checks.size() == 2);
  CHECK(!w.answer(node == "a" ? "b" : "a", w.checks[1].second, Code::kCorrupt));
  for (int i = 0; i < 30; ++i) CHECK(w.places("k" + std::to_string(i)) == 2);
  // All replicas, again and again for ten seconds: a tenth of the time at most, and a second ahead.
  w.checks.clear();
  for (int ms = 0; ms < 10'000; ms += 100) {
    for (int i = 0; i < 30; ++i)
      for (const NodeId n : {"a", "b"}) {
        const std::string key = "k" + std::to_string(i);
        REQUIRE(w.master->handle(ReportReplica{key, "", n, {}}, w.now));
      }
    w.pump();
    for (const auto& [n, task] : std::exchange(w.checks, {})) CHECK(w.answer(n, task, Code{}));
    w.now += 100ms;
  }
  CHECK(w.master->totals().checks <= 2 * (11'000 / 10 + 2));
  CHECK(w.master->totals().corrupt == 0);
}

TEST_CASE("F3: a verdict about a replica that was replaced meanwhile drops nothing") {
  World w;
  REQUIRE(w.put("k", kPage) == kDone);
  const auto [node, generation] = w.replica("k", 0);
  w.report("k", node, generation);
  REQUIRE(w.remove("k", true)->ok());
  REQUIRE(w.put("k", kPage) == kDone);
  (void)w.answer(node, w.checks[0].second, Code::kCorrupt);
  CHECK(w.places("k") == 1);
}

TEST_CASE("F3: a copy that arrives corrupt has its source checked") {
  World w;
  w.copies_succeed = false;
  REQUIRE(w.put("k", kPage) == kDone);
  const NodeId source = w.replica("k", 0).first;
  REQUIRE(w.master->handle(CopyKey{"k", "", "", false, ""}, w.now));
  w.pump();
  REQUIRE(w.copies_open.size() == 1);
  CHECK(w.answer(source == "a" ? "b" : "a", w.copies_open[0], Code::kCorrupt));
  REQUIRE(w.checks.size() == 1);
  CHECK(w.checks[0].first == source);
}

}  // namespace replica_checks_test
}  // namespace
}  // namespace mc::store
