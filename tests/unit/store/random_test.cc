// Long random histories of a cluster against a simple model of the allowed answers.
#include <set>

#include "base/random.h"
#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

uint64_t pages(uint64_t bytes) {
  return std::max<uint64_t>((bytes + kPage - 1) / kPage, 1) * kPage;
}

struct History {
  explicit History(uint64_t seed) : random(seed), cluster(options()) {
    cluster.add("a", 200 * kPage);
    cluster.add("b", 300 * kPage);
  }
  static MasterOptions options() {
    MasterOptions o;
    o.lease_ttl = 200ms;
    o.put_discard = 2s;
    return o;
  }

  Random random;
  FakeCluster cluster;
  std::map<ObjectKey, uint64_t> stored;  // checksum; may have been evicted since
  std::vector<std::pair<ObjectKey, Generation>> open;
  uint64_t checksums = 0;
  uint64_t epoch = kEpoch;
  NodeId away;  // silent for longer than its time to live, with what it holds

  ObjectKey key() { return "k" + std::to_string(random.below(60)); }

  void put() {
    const ObjectKey k = key();
    const bool was_there = cluster.has(k);
    const PutGrant g = cluster.grant(k, random.below(40 * kPage), random.chance(0.2) ? 2 : 1);
    if (!g.outcome.ok()) {
      const auto code = static_cast<Code>(g.outcome.code);
      CHECK((code == Code::kExists || code == Code::kBusy || code == Code::kNoSpace));
      if (code == Code::kExists) CHECK(was_there);
      return;
    }
    CHECK_FALSE(was_there);
    const double fate = random.uniform();
    if (fate < 0.7) {
      const Outcome o = cluster.end(k, g.generation, ++checksums);
      REQUIRE(o.ok());
      stored[k] = checksums;
    } else if (fate < 0.85) {
      CHECK(cluster.revoke(k, g.generation).ok());
    } else {
      open.push_back({k, g.generation});  // a writer that dawdles, perhaps for ever
    }
  }
  void late_end() {
    if (open.empty()) return;
    const auto [k, generation] = open.back();
    open.pop_back();
    if (cluster.end(k, generation, ++checksums).ok()) stored[k] = checksums;
  }
  void get() {
    const ObjectKey k = key();
    const Located at = cluster.get(k);
    if (!at.outcome.ok()) return;
    REQUIRE(stored.count(k) == 1);
    CHECK(at.checksum == stored[k]);
    CHECK_FALSE(cluster.remove(k)->ok());  // it is leased now
  }
  void remove() {
    const ObjectKey k = key();
    const auto outcome = cluster.remove(k, random.chance(0.3));
    REQUIRE(outcome);
    if (outcome->ok()) {
      CHECK_FALSE(cluster.has(k));
      CHECK(stored.erase(k) == 1);
    } else if (outcome->code == static_cast<uint8_t>(Code::kNotFound)) {
      stored.erase(k);  // wherever it may be: it does not come back
    }
  }
  void lose_node() {
    if (!away.empty()) return;
    away = random.chance(0.5) ? "a" : "b";
    cluster.run_until(cluster.now + cluster.options_used.client_ttl + 2s, away);
    REQUIRE(cluster.master->members().all().count(away) == 0);
  }
  void find_node() {
    if (away.empty()) return;
    cluster.mount(*cluster.nodes[std::exchange(away, {})]);
    cluster.pump();
  }
  void restart_master() {
    if (!away.empty()) return;  // it would forget what must not come back
    std::set<ObjectKey> before;
    for (const auto& o : cluster.list()) before.insert(o.key);
    cluster.restart_master(epoch += random.below(3));
    open.clear();
    std::set<ObjectKey> after;
    for (const auto& o : cluster.list()) after.insert(o.key);
    CHECK(before == after);
  }
  void restart_node() {
    const NodeId name = random.chance(0.5) ? "a" : "b";
    if (name == away) return;
    auto& node = cluster.nodes[name];
    const uint64_t capacity = node->layout.capacity, generation = node->ref.generation.n;
    REQUIRE(cluster.master->handle(Unmount{name, node->ref.generation}, cluster.now));
    cluster.add(name, capacity, generation + 1);
  }

  void check() {
    std::map<std::pair<NodeId, uint64_t>, ObjectInfo> listed;
    uint64_t replicas = 0, object_bytes = 0;
    for (const auto& o : cluster.list()) {
      REQUIRE(stored.count(o.key) == 1);
      CHECK(stored[o.key] == o.checksum);
      replicas += o.replicas;
      object_bytes += o.bytes;
    }
    const ClusterStat stat = cluster.stat();
    CHECK(stat.object_bytes == object_bytes);
    uint64_t recorded = 0;
    for (const auto& [name, node] : cluster.nodes) {
      if (name == away) continue;
      uint64_t bytes = 0;
      std::map<uint64_t, uint64_t> pieces;  // offset: whole pages
      for (const ObjectRecord& r : node->directory.page(0, true, 1 << 20)) {
        CHECK(pieces.emplace(r.offset, pages(r.more.empty() ? r.bytes : r.first_bytes)).second);
        for (const Extent& e : r.more) CHECK(pieces.emplace(e.offset, pages(e.bytes)).second);
        CHECK(stored.count(r.key) == 1);
        CHECK(stored[r.key] == r.checksum);
        ++recorded;
      }
      uint64_t end = 0;
      for (const auto& [offset, span] : pieces) {
        CHECK(offset >= end);  // no overlap
        end = offset + span;
        bytes += span;
      }
      CHECK(end <= node->layout.data + node->layout.capacity);
      const Member& member = *cluster.master->members().all().at(name);
      CHECK(member.releasing == 0);  // pump() ended
      CHECK(member.space.used() >= bytes);
      if (stat.writing == 0 && cluster.master->totals().puts_discarded == 0)
        CHECK(member.space.used() == bytes);
    }
    CHECK(recorded == replicas);
  }
};

TEST_CASE("over long random histories nothing is wrong, lost, doubled or unaccounted for") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    History h(seed);
    for (int step = 0; step < 1500; ++step) {
      CAPTURE(step);
      const double what = h.random.uniform();
      if (what < 0.5)
        h.put();
      else if (what < 0.55)
        h.late_end();
      else if (what < 0.75)
        h.get();
      else if (what < 0.9)
        h.remove();
      else if (what < 0.905)
        h.lose_node();
      else if (what < 0.93)
        h.find_node();
      else if (what < 0.99)
        h.cluster.run_until(h.cluster.now + std::chrono::milliseconds(h.random.below(400)));
      else if (what < 0.995)
        h.restart_master();
      else
        h.restart_node();
      h.cluster.pump();
      if (step % 10 == 0) h.check();
    }
    h.find_node();
    // When every lease and every grant has run out, all room is accounted for again.
    h.cluster.run_until(h.cluster.now + 10s);
    h.check();
    for (const auto& o : h.cluster.list()) CHECK(h.cluster.remove(o.key)->ok());
    CHECK(h.cluster.stat().used == 0);
    CHECK(h.cluster.stat().writing == 0);
  }
}

}  // namespace
}  // namespace mc::store
