#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <queue>

#include "p2p/swarm/node.h"
#include "p2p/swarm/swarm.h"

namespace mc::p2p {
namespace {

Manifest manifest(std::vector<FileEntry> files, uint64_t shard = kShardBytesMin) {
  Manifest m;
  m.name = "weights";
  m.shard_bytes = shard;
  m.files = std::move(files);
  m.sums.resize(shards_of(m).size());
  return m;
}

Time at(double seconds) { return Time{} + std::chrono::nanoseconds(int64_t(seconds * 1e9)); }

// Nodes with an uplink and a downlink of equal rate, one shard after another on each; sources and
// pullers decide as they do live. Time is virtual.
struct Swarm {
  static constexpr double kShardSeconds = 0.05;
  size_t shards;
  std::vector<std::string> names;
  std::map<std::string, ShardSet> have;
  std::map<std::string, Uplink> uplinks;
  std::map<std::string, Sources> sources;
  std::map<std::string, ShardSet> under_way;
  std::map<std::string, double> up_free, down_free, finished;
  struct Event {
    double when;
    std::function<void()> run;
    bool operator<(const Event& o) const { return when > o.when; }
  };
  std::priority_queue<Event> events;
  double now = 0;

  Swarm(size_t n, size_t pullers) : shards(n) {
    for (size_t i = 0; i <= pullers; ++i) {
      const std::string name = "n" + std::to_string(i);
      names.push_back(name);
      have.emplace(name, ShardSet(n));
      under_way.emplace(name, ShardSet(n));
      uplinks.emplace(name, Uplink(n, {}, i));
      sources.emplace(name, Sources({}, name, i + 100));
    }
    for (size_t s = 0; s < n; ++s) have["n0"].add(s);
    for (size_t i = 1; i <= pullers; ++i) {
      for (const auto& other : names) sources.at(names[i]).learn(other);
      for (int thread = 0; thread < 4; ++thread) ask(names[i]);
    }
  }
  void later(double when, std::function<void()> run) { events.push({when, std::move(run)}); }
  void ask(const std::string& me) {
    if (have[me].all()) {
      finished.try_emplace(me, now);
      return;
    }
    ShardSet wanted(shards);
    for (size_t s = 0; s < shards; ++s)
      if (!have[me].has(s) && !under_way[me].has(s)) wanted.add(s);
    const auto source = wanted.count() > 0 ? sources.at(me).next(at(now)) : std::nullopt;
    if (!source) return later(now + 0.01, [this, me] { ask(me); });
    const auto shard = uplinks.at(*source).grant(have[*source], wanted, me, at(now));
    if (!shard) {
      sources.at(me).refused(*source, shard.error().code == Code::kNotFound, at(now));
      return later(now + 0.001, [this, me] { ask(me); });
    }
    under_way[me].add(*shard);
    const double start = std::max({now, up_free[*source], down_free[me]});
    const double end = start + kShardSeconds;
    up_free[*source] = down_free[me] = end;
    later(end, [this, me, from = *source, s = *shard] {
      uplinks.at(from).released(s, me);
      under_way[me].remove(s);
      have[me].add(s);
      sources.at(me).gave(from, at(now));
      ask(me);
    });
  }
  double run() {
    while (!events.empty() && now < 1000) {
      const Event e = events.top();
      events.pop();
      now = e.when;
      e.run();
    }
    double last = 0;
    for (const auto& [name, when] : finished) last = std::max(last, when);
    return finished.size() + 1 == names.size() ? last : 1e9;
  }
};

}  // namespace

TEST_SUITE("p2p") {
  TEST_CASE("files are cut into shards, the last of each as long as what is left") {
    const auto m = manifest({{"a", 3 * kShardBytesMin + 1}, {"empty", 0}, {"b/c", 7}});
    const auto shards = shards_of(m);
    REQUIRE(shards.size() == 5);
    CHECK(shards[3].bytes == 1);
    CHECK(shards[4].file == 2);
    CHECK(shards[4].bytes == 7);
    CHECK(check(m).has_value());
    CHECK(m.bytes() == 3 * kShardBytesMin + 8);
  }

  TEST_CASE("a manifest that reaches outside its folder, lies or overflows is refused") {
    for (const char* path : {"/etc/passwd", "../x", "a/../../x", "", "a//b", "a/", ".", "a/./b"})
      CHECK_MESSAGE(!check(manifest({{path, 1}})), path);
    CHECK(!check(manifest({{"a", 1}, {"a", 2}})));
    CHECK(!check(manifest({})));
    auto lying = manifest({{"a", 1}});
    lying.sums.clear();
    CHECK(!check(lying));
    auto huge = manifest({{"a", 1}});
    huge.files[0].bytes = UINT64_MAX;
    CHECK(!check(huge));
    auto tiny = manifest({{"a", 1}});
    tiny.shard_bytes = 0;
    CHECK(!check(tiny));
    CHECK(!check_name("a b"));
    CHECK(!check_name(std::string(kNameMax + 1, 'x')));
    CHECK(check_name("org/model:v1.2_x-3").has_value());
  }

  TEST_CASE("contents, names, sizes and order all make another id") {
    const auto m = manifest({{"a", 1}, {"b", 2}});
    auto other = m;
    other.sums[1] = 9;
    CHECK(other.id() != m.id());
    CHECK(manifest({{"a", 2}, {"b", 1}}).id() != m.id());
    CHECK(manifest({{"b", 2}, {"a", 1}}).id() != m.id());
    CHECK(manifest({{"a", 1}, {"b", 2}}).id() == m.id());
  }

  TEST_CASE("a shard set survives the wire, and one of another size is refused") {
    ShardSet s(70);
    s.add(0);
    s.add(69);
    s.add(69);
    CHECK(s.count() == 2);
    const auto back = ShardSet::from(s.bytes(), 70);
    REQUIRE(back.has_value());
    CHECK(back->count() == 2);
    CHECK(back->has(69));
    CHECK(!ShardSet::from(s.bytes(), 700).has_value());
    // Bits past the end count for nothing.
    CHECK(ShardSet::from(std::string(8, '\xff'), 3)->count() == 3);
  }

  TEST_CASE("slots of pullers that died are free before another one loses patience (F143)") {
    Uplink uplink(4, {}, 7);
    ShardSet all(4);
    for (uint32_t i = 0; i < 4; ++i) all.add(i);
    const Time start{};
    for (int i = 0; i < 2; ++i) CHECK(uplink.grant(all, all, "dead", start).has_value());
    CHECK_FALSE(uplink.grant(all, all, "next", start).has_value());
    CHECK(
        uplink.grant(all, all, "next", start + PullRequest().patience / 2 + std::chrono::seconds(1))
            .has_value());
  }

  TEST_CASE("an uplink gives each shard out once before it repeats one, to so many at a time") {
    Uplink uplink(4, {.slots = 2, .slot_max = std::chrono::seconds(1)}, 7);
    ShardSet all(4);
    for (size_t i = 0; i < 4; ++i) all.add(i);
    std::vector<uint32_t> given;
    for (int i = 0; i < 4; ++i) {
      const auto shard = uplink.grant(all, all, "asker", at(i));
      REQUIRE(shard.has_value());
      uplink.released(*shard, "asker");
      given.push_back(*shard);
    }
    std::sort(given.begin(), given.end());
    CHECK(given == std::vector<uint32_t>{0, 1, 2, 3});
    CHECK(uplink.grant(all, all, "a", at(10)).has_value());
    CHECK(uplink.grant(all, all, "b", at(10)).has_value());
    CHECK(uplink.grant(all, all, "c", at(10)).error().code == Code::kBusy);
    CHECK(uplink.grant(all, all, "c", at(12)).has_value());  // slots not given back free themselves
    CHECK(uplink.grant(all, ShardSet(4), "d", at(20)).error().code == Code::kNotFound);
  }

  TEST_CASE("a source that fails is paused, then dropped; a busy one is retried soon") {
    Sources s({}, "me", 1);
    s.learn("me");
    s.learn("a");
    REQUIRE(s.known() == std::vector<std::string>{"a"});
    REQUIRE(s.next(at(0)) == "a");
    s.refused("a", false, at(0));
    CHECK(!s.next(at(0.001)));
    CHECK(s.wakes() == at(0.02));
    REQUIRE(s.next(at(0.02)) == "a");
    s.gave("a", at(0.02));
    for (int i = 0; i < 5; ++i) {
      REQUIRE(s.next(at(1 + i)) == "a");
      s.failed("a", at(1 + i));
      CHECK(!s.next(at(1.1 + i)));
    }
    CHECK(s.none());
  }

  TEST_CASE("eight pullers are served in less than twice the time of one") {
    const double one = Swarm(40, 1).run();
    const double eight = Swarm(40, 8).run();
    MESSAGE("1 -> 1: " << one << " s, 1 -> 8: " << eight << " s");
    CHECK(one >= 40 * Swarm::kShardSeconds);
    CHECK(eight <= 2 * one);
  }
}

}  // namespace mc::p2p
