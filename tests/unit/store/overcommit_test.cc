// Concurrent writers put three times what the pool holds, without disks. None gets kNoSpace,
// because eviction makes space within the wait. With disks: offload_test, tests/net/store_defaults.
#include "base/random.h"
#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

struct Writers {
  explicit Writers(const std::string& policy, uint64_t seed) : random(seed), cluster(with(policy)) {
    cluster.add("a", 4096 * kPage);
    cluster.add("b", 2048 * kPage);
  }
  static MasterOptions with(const std::string& policy) {
    MasterOptions o;
    o.evict = policy;
    return o;
  }
  Random random;
  FakeCluster cluster;
  uint64_t granted = 0, failed = 0, put = 0;
  Duration longest{};
  struct Open {
    ObjectKey key;
    PutGrant grant;
    Time ends;
  };
  std::vector<std::optional<Open>> open = std::vector<std::optional<Open>>(8);
  std::vector<bool> waiting = std::vector<bool>(8, false);

  void start(size_t writer) {
    const uint64_t bytes = random.chance(0.1) ? random.below(400 * kPage) : random.below(9 * kPage);
    const ObjectKey key = "w" + std::to_string(writer) + "-" + std::to_string(put++);
    PutStart m;
    m.items = {{key, bytes}};
    waiting[writer] = true;
    cluster.master->handle(m, cluster.now,
                           [this, writer, key, since = cluster.now](const Result<PutStarted>& r) {
                             waiting[writer] = false;
                             longest = std::max(longest, cluster.now - since);
                             if (!r->items[0].outcome.ok()) {
                               ++failed;
                               return;
                             }
                             ++granted;
                             open[writer] = {key, r->items[0], cluster.now + 2ms};
                           });
  }
  void step() {
    for (size_t w = 0; w < open.size(); ++w) {
      if (waiting[w]) continue;
      if (!open[w]) {
        start(w);
      } else if (open[w]->ends <= cluster.now) {
        const Open done = *std::exchange(open[w], std::nullopt);
        cluster.master->handle(PutEnd{{{done.key, done.grant.generation, 1}}, {}}, cluster.now,
                               [](const Result<Outcomes>& r) { REQUIRE(r->items[0].ok()); });
        if (random.chance(0.05)) cluster.get(done.key);  // leased for seconds
      }
    }
    if (random.chance(0.5)) cluster.pump();  // the nodes take their time
    cluster.run_until(cluster.now + 1ms);
  }
};

TEST_CASE("background eviction runs in small steps, between which calls are answered") {
  constexpr uint64_t kPages = 65536;
  constexpr size_t kBatch = 500;
  FakeCluster c;
  c.add("n", kPages * kPage);
  uint64_t evicted = 0, most = 0;
  const auto look = [&] {
    const uint64_t all = c.master->totals().evicted_objects;
    most = std::max(most, all - std::exchange(evicted, all));
  };
  for (size_t at = 0; evicted == 0; at += kBatch) {
    REQUIRE(at < kPages);
    PutStart start;
    for (size_t i = at; i < at + kBatch; ++i) start.items.push_back({"k" + std::to_string(i), 1});
    PutEnd end;
    c.master->handle(start, c.now, [&](const Result<PutStarted>& r) {
      for (size_t i = 0; i < kBatch; ++i)
        end.items.push_back({start.items[i].key, r->items[i].generation, 1});
    });
    look();
    if (evicted > 0) break;
    c.master->handle(end, c.now, [](const Result<Outcomes>&) {});
    c.pump();
  }
  CHECK(c.master->members().used() > kPages * kPage * 9 / 10);
  CHECK(most <= 64);
  CHECK(c.master->deadline() <= c.now);  // it goes on at once
  most = 0;
  for (int i = 0; i < 400 && c.master->deadline() <= c.now; ++i) {
    c.master->tick(c.now);
    look();
  }
  CHECK(c.master->deadline() > c.now);
  CHECK(c.master->members().used() <= kPages * kPage * 9 / 10);
  CHECK(c.master->members().used() > kPages * kPage * 89 / 100);
  CHECK(most <= 16);  // a put of less waits no longer than for its own like
}

TEST_CASE("a step of background eviction is of so many bytes, however few objects they are") {
  constexpr uint64_t kLarge = 64 * kMiB, kCount = 400;
  FakeCluster c;
  auto& node = c.nodes["n"] = std::make_unique<FakeNode>("n", kCount * kLarge, 7);
  node->layout.data = 1 * kGiB;  // behind its guard words
  node->directory = Directory(node->layout);
  c.mount(*node);
  uint64_t evicted = 0, most = 0;
  const auto look = [&] {
    const uint64_t all = c.master->totals().evicted_bytes;
    most = std::max(most, all - std::exchange(evicted, all));
  };
  for (size_t i = 0; evicted == 0; ++i) {
    REQUIRE(i < kCount);
    const ObjectKey key = "k" + std::to_string(i);
    PutStart start;
    start.items = {{key, kLarge, {}}};
    PutEnd end;
    c.master->handle(start, c.now, [&](const Result<PutStarted>& r) {
      end.items = {{key, r->items[0].generation, 1}};
    });
    look();
    if (evicted > 0) break;
    c.master->handle(end, c.now, [](const Result<Outcomes>&) {});
    c.pump();
  }
  CHECK(c.master->members().used() > kCount * kLarge * 9 / 10);
  CHECK(c.master->deadline() <= c.now);  // it goes on at once
  for (int i = 0; i < 400 && c.master->deadline() <= c.now; ++i) {
    c.master->tick(c.now);
    look();
  }
  CHECK(c.master->deadline() > c.now);
  CHECK(c.master->members().used() <= kCount * kLarge * 9 / 10);
  CHECK(c.master->members().used() > kCount * kLarge * 89 / 100);
  CHECK(most == kLarge);
}

TEST_CASE("at three times its size in puts, memory alone fails none of eight writers") {
  for (const std::string policy : {"lru", "sieve"})
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(policy);
      CAPTURE(seed);
      Writers w(policy, seed);
      while (w.cluster.stat().evicted_bytes < 2 * 6144 * kPage) w.step();
      CHECK(w.failed == 0);
      CHECK(w.granted > 500);
      CHECK(w.longest < 100ms);
      CHECK(w.cluster.stat().used <= w.cluster.stat().capacity);
    }
}

}  // namespace
}  // namespace mc::store
