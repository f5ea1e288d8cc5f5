// A lost node leaves the tables in parts; a call meanwhile finds it gone.
#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

constexpr size_t kLeavingMany = 2000;  // many parts

std::string leaving_key(size_t i) { return "key-" + std::to_string(i); }

struct LeftCluster
    : FakeCluster {  // "gone" has been, with kLeavingMany objects, and has not left all of them yet
  explicit LeftCluster(uint32_t replicas = 1) {
    add("gone", 64 * kMiB);
    if (replicas > 1) add("stays", 64 * kMiB, 8);
    for (size_t i = 0; i < kLeavingMany; ++i)
      REQUIRE(put(leaving_key(i), 4096, i + 1, replicas) == kDone);
    if (replicas == 1) add("stays", 64 * kMiB, 8);
    REQUIRE(master->handle(Unmount{"gone", Generation{7}, true}, now));
    keep = std::move(nodes.at("gone"));
    nodes.erase("gone");
    REQUIRE(master->deadline() <= now);  // there is more to do
    REQUIRE(stat().objects > (replicas == 1 ? 0 : kLeavingMany - 1));
  }
  void finish() {
    size_t steps = 0;
    for (; master->deadline() <= now && steps < kLeavingMany; ++steps) master->tick(now);
    CHECK(steps >= 3);  // the rest of them, and of its ranges' memory
    CHECK(steps < 50);
  }
  std::unique_ptr<FakeNode> keep;
};

}  // namespace

TEST_CASE("a lost node's objects are not found, long before all of them left the table") {
  LeftCluster c;
  for (const size_t i : {size_t{0}, size_t{1000}, kLeavingMany - 1}) {
    CHECK_FALSE(c.has(leaving_key(i)));
    CHECK(c.get(leaving_key(i)).outcome.code == static_cast<uint8_t>(Code::kNotFound));
  }
  c.finish();
  CHECK(c.stat().objects == 0);
  CHECK(c.stat().object_bytes == 0);
  CHECK(c.stat().tenants[0].used == 0);
}

TEST_CASE("its keys can be put again meanwhile, and its later departure does not remove them") {
  LeftCluster c;
  for (const size_t i : {size_t{3}, kLeavingMany - 3})
    CHECK(c.put(leaving_key(i), 8192, 99) == kDone);
  c.finish();
  CHECK(c.stat().objects == 2);
  const Located at = c.get(leaving_key(kLeavingMany - 3));
  CHECK(at.checksum == 99);
  REQUIRE(at.places.size() == 1);
}

TEST_CASE("a replica elsewhere stays, and readers are sent to it at once") {
  LeftCluster c(2);
  CHECK(c.get(leaving_key(kLeavingMany - 1)).places.size() == 1);
  CHECK(c.list().size() == kLeavingMany);
  c.run_until(c.now + 1s);
  CHECK(c.stat().objects == kLeavingMany);
  for (const size_t i : {size_t{0}, size_t{999}}) CHECK(c.get(leaving_key(i)).places.size() == 1);
}

TEST_CASE("a node that is back before it left has its objects back, but not what was removed") {
  LeftCluster c;
  CHECK(c.put(leaving_key(5), 8192, 99) == kDone);  // while it is away
  REQUIRE(c.remove(leaving_key(5), true)->ok());
  Mount again;
  again.node = {"gone", "127.0.0.1:1", Generation{7}};
  again.layout = c.keep->layout;
  const auto early = c.master->handle(again, c.now);
  REQUIRE_FALSE(early);  // nobody waits until the rest of it is off the table
  CHECK(early.error().code == Code::kBusy);
  CHECK(early.error().what.find("retry") != std::string::npos);
  c.finish();
  c.nodes["gone"] = std::move(c.keep);
  c.mount(*c.nodes["gone"]);
  c.pump();
  c.run_until(c.now + 1s);
  CHECK(c.stat().objects == kLeavingMany - 1);
  CHECK_FALSE(c.has(leaving_key(5)));
  CHECK(c.has(leaving_key(6)));
  CHECK(c.get(leaving_key(kLeavingMany - 1)).checksum == kLeavingMany);
}

TEST_CASE("removal and eviction meanwhile do not stumble over it") {
  LeftCluster c;
  CHECK(c.remove(leaving_key(kLeavingMany - 1))->code == static_cast<uint8_t>(Code::kNotFound));
  for (int i = 0; i < 40; ++i)
    CHECK(c.put("new-" + std::to_string(i), 4 * kMiB, 1) == kDone);  // more than there is room
  c.run_until(c.now + 1s);
  CHECK(c.stat().used <= 64 * kMiB);
  CHECK(c.has("new-39"));
  CHECK_FALSE(c.has(leaving_key(0)));
}

}  // namespace mc::store
