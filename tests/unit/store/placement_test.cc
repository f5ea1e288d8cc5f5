#include "store/metadata/placement.h"

#include <doctest/doctest.h>

#include <map>

namespace mc::store {

namespace placement_test {

namespace {

using namespace std::chrono_literals;
const Time t0{1000s};

struct Nodes {
  std::vector<std::unique_ptr<Member>> all;
  std::vector<Member*> ready;
  Random random{4};
  Member& add(const std::string& name, uint64_t pages, const std::string& host = {},
              const std::string& domain = {}) {
    all.push_back(std::make_unique<Member>(NodeRef{name, "127.0.0.1:1", Generation{1}},
                                           Layout{kMiB, pages * kPage, 0}));
    all.back()->host = host;
    all.back()->domain = domain;
    all.back()->ready_since = t0;
    ready.push_back(all.back().get());
    return *all.back();
  }
  NodeId choose(const PlacementOptions& options, const PlacementRequest& request,
                const std::vector<Replica>& used = {}, Time now = t0 + 1h) {
    NodeId chosen;
    place_by(options, ready, used, request, now, random, [&](Member& node) {
      if (node.space.used() == node.space.capacity()) return false;
      chosen = node.ref.name;
      return true;
    });
    return chosen;
  }
};

TEST_CASE("the preferred node is taken while it has room, then one of the host, then any") {
  Nodes n;
  Member& full = n.add("full", 1, "here");
  n.add("near", 10, "here");
  n.add("far", 1000, "there");
  full.space.allocate(1, 1);
  CHECK(n.choose({}, {"far", "here", true}) == "far");
  for (int i = 0; i < 20; ++i) CHECK(n.choose({}, {"full", "here", true}) == "near");
  std::map<NodeId, int> taken;
  for (int i = 0; i < 200; ++i) ++taken[n.choose({}, {"full", "here", false})];
  CHECK(taken["far"] > 50);
  CHECK(n.choose({Strategy::kLocalFirst, 30s}, {"", "there", false}) == "far");
}

TEST_CASE("several preferred nodes are taken in their order while they have room") {
  Nodes n;
  Member& full = n.add("full", 1);
  n.add("a", 10);
  n.add("b", 10);
  n.add("others", 100'000);
  full.space.allocate(1, 1);
  for (int i = 0; i < 20; ++i) {
    CHECK(n.choose({}, {"full,b,a", "", false}) == "b");
    CHECK(n.choose({}, {"gone,a", "", false}) == "a");
    CHECK(n.choose({}, {",a,", "", false}) == "a");
  }
}

TEST_CASE("of two at random the emptier is taken, so nodes fill evenly by their free part") {
  Nodes n;
  Member& a = n.add("a", 1000);
  Member& b = n.add("b", 4000);
  a.space.allocate(500 * kPage, 1);
  for (int i = 0; i < 3000; ++i) {
    const NodeId at = n.choose({}, {});
    if ((at == "a" ? a : b).space.allocate(1, 1) == kNoId) break;
  }
  const double free_a = 1 - static_cast<double>(a.space.used()) / (1000.0 * kPage);
  const double free_b = 1 - static_cast<double>(b.space.used()) / (4000.0 * kPage);
  CHECK(std::abs(free_a - free_b) < 0.15);
}

TEST_CASE("a new node gets few puts, and its share grows with time") {
  Nodes n;
  for (int i = 0; i < 9; ++i) {
    Member& old = n.add("old" + std::to_string(i), 1000);
    old.space.allocate(900 * kPage, 1);
    old.ready_since = t0 - 1h;
  }
  n.add("new", 1000);  // empty: it would win whenever it is looked at
  const auto share = [&](Duration age) {
    int taken = 0;
    for (int i = 0; i < 2000; ++i) taken += n.choose({}, {}, {}, t0 + age) == "new";
    return taken / 2000.0;
  };
  const double first = share(0s), half = share(15s), grown = share(1h);
  CHECK(first < 0.05);
  CHECK(half > first);
  CHECK(grown > half);
  CHECK(grown > 0.15);
}

TEST_CASE("replicas go to other nodes, and to other failure domains while there are any") {
  Nodes n;
  Member& a = n.add("a", 100, "", "rack1");
  n.add("b", 100, "", "rack1");
  n.add("c", 100, "", "rack2");
  for (int i = 0; i < 50; ++i) CHECK(n.choose({}, {}, {{&a, 0, {}}}) == "c");
  n.ready.pop_back();
  CHECK(n.choose({}, {}, {{&a, 0, {}}}) == "b");
  n.ready.pop_back();
  CHECK(n.choose({}, {}, {{&a, 0, {}}}) == "");
}

}  // namespace

}  // namespace placement_test
}  // namespace mc::store
