#include "tests/unit/store/fake_cluster.h"

namespace mc::store {
namespace {

TEST_CASE("a master that starts empty is whole again from its nodes") {
  FakeCluster c;
  c.add("a", 64 * kMiB);
  c.add("b", 64 * kMiB);
  for (int i = 0; i < 50; ++i)
    REQUIRE(c.put("k" + std::to_string(i), 1000 + static_cast<uint64_t>(i),
                  static_cast<uint64_t>(i), i % 2 ? 2 : 1) == kDone);
  const Located before = c.get("k7");
  const uint64_t used = c.stat().used;
  c.restart_master(kEpoch + 5);
  const Located after = c.get("k7");
  CHECK(after.bytes == before.bytes);
  CHECK(after.checksum == before.checksum);
  CHECK(after.generation == before.generation);
  CHECK(after.places.size() == 2);
  CHECK(c.stat().objects == 50);
  CHECK(c.stat().used == used);
}

TEST_CASE("what was removed or evicted does not come back") {
  FakeCluster c;
  c.add("n", 10 * kPage);
  for (int i = 0; i < 30; ++i) REQUIRE(c.put("k" + std::to_string(i), 1) == kDone);
  REQUIRE(c.remove("k29")->ok());
  const uint64_t objects = c.stat().objects;
  c.restart_master(kEpoch + 5);
  CHECK_FALSE(c.has("k29"));
  CHECK_FALSE(c.has("k0"));
  CHECK(c.stat().objects == objects);
}

TEST_CASE("a node cannot void what will be put") {
  FakeCluster c;
  c.add("a", 10 * kPage).directory.learn_dead(Tombstones::hash_of("k"), UINT64_MAX);
  c.add("b", 64 * kMiB);
  REQUIRE(c.put("k", 20 * kPage) == kDone);
  c.restart_master(kEpoch + 5);  // "a" is the first to mount
  CHECK(c.has("k"));
}

TEST_CASE("a removal is the newest that a node knows, and the next master exceeds it") {
  Directory directory{Layout{0, 64 * kMiB, 64 * kMiB}};
  CHECK(directory.newest() == Generation{});
  directory.learn_dead(Tombstones::hash_of("k"), 7ull << 32 | 3);
  CHECK(directory.newest() == Generation{7ull << 32 | 3});
}

TEST_CASE("a removal is answered only when the holders have forgotten") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  REQUIRE(c.put("k", 1) == kDone);
  std::optional<Outcome> answer;
  c.master->handle(Remove{{"k"}, false}, c.now,
                   [&](const Result<Outcomes>& r) { answer = r->items[0]; });
  CHECK_FALSE(answer);
  c.pump();
  REQUIRE(answer);
  CHECK(answer->ok());
}

TEST_CASE("the epoch grows across a restart, even within one second or with a clock set back") {
  for (const uint64_t epoch : {kEpoch, kEpoch - 1000}) {
    FakeCluster c;
    c.add("n", 64 * kMiB);
    const Generation before = c.grant("a", 1).generation;
    c.restart_master(epoch);
    CHECK(c.master->epoch() > kEpoch);
    CHECK(c.grant("b", 1).generation > before);
  }
}

TEST_CASE("F98: a client's larger epoch is exceeded, one beyond all clocks is not") {
  FakeCluster c;
  CHECK(c.master->handle(Stat{kEpoch + 1000}, c.now).epoch == kEpoch + 1001);
  CHECK(c.master->handle(Stat{kEpoch}, c.now).epoch == kEpoch + 1001);
  // Generations are 64 bits with an epoch of 32: claims must not add up to more.
  constexpr uint64_t kYear = 365 * 24 * 3600;
  uint64_t epoch = kEpoch;
  for (int i = 0; i < 100; ++i) epoch = c.master->handle(Stat{epoch + 8 * kYear}, c.now).epoch;
  CHECK(epoch < kEpoch + 9 * kYear);
  CHECK(c.master->handle(Stat{UINT64_MAX}, c.now).epoch == epoch);
}

TEST_CASE("puts that were in flight when the master died are stale, and can be made again") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  const PutGrant g = c.grant("k", 1);
  c.restart_master(kEpoch + 5);
  CHECK(c.end("k", g.generation).code == static_cast<uint8_t>(Code::kStale));
  CHECK(c.put("k", 1) == kDone);
}

TEST_CASE("ranges registered twice are refused, and the node forgets them") {
  FakeCluster c;
  FakeNode& n = c.add("n", 64 * kMiB);
  REQUIRE(c.put("k", 3 * kPage) == kDone);
  const uint64_t at = c.get("k").places[0].offset;
  // A node whose directory was corrupted: a second record inside the first.
  Order lie{
      0, static_cast<uint8_t>(OrderKind::kRecord), {"lie", at + kPage, 10, 1, Generation{9}}, {}};
  REQUIRE(n.directory.carry_out(lie));
  Order worse = lie;
  worse.record = {"no-generation", at + 10 * kPage, 10, 1, Generation{}};
  REQUIRE(n.directory.carry_out(worse));
  c.restart_master(kEpoch + 5);
  CHECK(c.has("k"));
  CHECK_FALSE(c.has("lie"));
  CHECK_FALSE(c.has("no-generation"));
  CHECK(c.master->totals().records_refused == 2);
  CHECK(n.directory.objects() == 1);
}

TEST_CASE("of two values of one key the later put wins, and the other is given back") {
  FakeCluster c;
  FakeNode& a = c.add("a", 64 * kMiB);
  FakeNode& b = c.add("b", 64 * kMiB);
  REQUIRE(a.directory.carry_out(
      {0, 1, {"k", a.layout.data, 10, 111, Generation{kEpoch << 32 | 5}}, {}}));
  REQUIRE(b.directory.carry_out(
      {0, 1, {"k", b.layout.data, 20, 222, Generation{kEpoch << 32 | 6}}, {}}));
  c.restart_master(kEpoch + 5);
  CHECK(c.get("k").checksum == 222);
  CHECK(c.get("k").places.size() == 1);
  CHECK(c.stat().objects == 1);
  CHECK(c.stat().used == kPage);
  CHECK(a.directory.objects() == 0);
}

TEST_CASE("a node that restarted holds nothing of what its name held before") {
  FakeCluster c;
  c.add("n", 64 * kMiB, 7);
  REQUIRE(c.put("k", 1) == kDone);
  auto old = std::move(c.nodes["n"]);
  old->inbox.reset();
  FakeNode fresh("n", 64 * kMiB, 8);
  const Mount mount{fresh.ref, fresh.layout, 0};
  CHECK(c.master->handle(mount, c.now).error().code == Code::kBusy);  // the old one is alive
  c.nodes.erase("n");
  c.run_until(t0 + 4s);
  REQUIRE(c.master->handle(mount, c.now));
  CHECK_FALSE(c.has("k"));
}

TEST_CASE("unmounting removes a node's objects at once, and unknown nodes get a remount") {
  FakeCluster c;
  c.add("n", 64 * kMiB);
  REQUIRE(c.put("k", 1) == kDone);
  REQUIRE(c.master->handle(Unmount{"n", Generation{7}}, c.now));
  CHECK_FALSE(c.has("k"));
  CHECK(c.stat().capacity == 0);
  c.pump();
  CHECK(c.nodes["n"]->remounts == 1);
  CHECK(c.has("k"));  // it is still there, and so is the node
}

TEST_CASE("a node of a release without a common protocol is refused, and replaces nobody (F124)") {
  FakeCluster c;
  c.add("n", 64 * kMiB, 7);
  REQUIRE(c.put("k", 1) == kDone);
  auto old = std::move(c.nodes["n"]);
  old->inbox.reset();
  c.nodes.erase("n");
  c.run_until(t0 + 4s);  // it is silent: its name may be taken
  FakeNode fresh("n", 64 * kMiB, 8);
  Mount mount{fresh.ref, fresh.layout, 0};
  mount.release = {"9.9.9", wire::kProtocolMax + 1, wire::kProtocolMax + 2};
  const auto refused = c.master->handle(mount, c.now);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kUnsupported);
  CHECK(refused.error().what.find("node n is mc 9.9.9 (protocols ") != std::string::npos);
  CHECK(refused.error().what.find("this master is " + wire::release_text(wire::this_release())) !=
        std::string::npos);
  CHECK(c.has("k"));
  mount.release.protocol_min = wire::kProtocolMin;
  const auto mounted = c.master->handle(mount, c.now);
  REQUIRE(mounted);
  CHECK(mounted->release.build == wire::this_release().build);
  CHECK(c.stat().nodes.at(0).release == "9.9.9");
}

TEST_CASE("impossible mounts and inventories are refused") {
  FakeCluster c;
  const NodeRef ref{"n", "127.0.0.1:1", Generation{7}};
  const auto code = [&](const Mount& m) {
    auto r = c.master->handle(m, c.now);
    return r ? Code{} : r.error().code;
  };
  CHECK(code({ref, {0, 0, 0}, 0}) == Code::kInvalid);
  CHECK(code({ref, {0, kPage + 1, 0}, 0}) == Code::kInvalid);
  CHECK(code({ref, {0, 16 * kPage, kPage}, 0}) == Code::kInvalid);  // guards inside the data
  CHECK(code({ref, {UINT64_MAX, kPage, 0}, 0}) == Code::kInvalid);
  CHECK(code({{"", "x:1", Generation{7}}, {kPage, kPage, 0}, 0}) == Code::kInvalid);
  CHECK(code({{"n", "", Generation{7}}, {kPage, kPage, 0}, 0}) == Code::kInvalid);
  CHECK(code({ref, {kPage, kPage, 0}, UINT32_MAX}) == Code::kInvalid);
  CHECK(c.master->handle(Inventory{"n", Generation{7}, {}, true}, c.now).error().code ==
        Code::kStale);
  c.add("n", 64 * kMiB);
  CHECK(c.master->handle(Inventory{"n", Generation{7}, {}, true}, c.now).error().code ==
        Code::kInvalid);
}

}  // namespace
// It arrives late: the node's connection stood still, and the node mounted over another one. It
// would acknowledge orders that the node never saw; what it was to forget would come back.
TEST_CASE("what a node said of an earlier mount acknowledges nothing") {
  FakeCluster c;
  FakeNode& node = c.add("n", 64 * kPage);
  REQUIRE(c.put("k", kPage) == kDone);
  const uint64_t done = node.done;
  REQUIRE(done > 0);
  c.mount(node);
  const auto first =
      c.master->handle(Mount{node.ref, node.layout, node.epoch_seen, node.nodes_seen}, c.now);
  REQUIRE(first);
  const auto second =
      c.master->handle(Mount{node.ref, node.layout, node.epoch_seen, node.nodes_seen}, c.now);
  REQUIRE(second);
  CHECK(first->fence != second->fence);
  Inventory inventory{"n", node.ref.generation, node.directory.page(0, true, 4096), true};
  inventory.mount = first->fence;
  CHECK(c.master->handle(inventory, c.now).error().code == Code::kStale);
  inventory.mount = second->fence;
  REQUIRE(c.master->handle(inventory, c.now));
  bool removed = false;
  c.master->handle(Remove{{"k"}, true}, c.now,
                   [&](const Result<Outcomes>& r) { removed = r && r->items[0].ok(); });
  std::optional<HeartbeatReply> answer;
  const auto beat = [&](Generation mount, uint64_t of) {
    answer.reset();
    Heartbeat m{"n", node.ref.generation, of, 1000};
    m.mount = mount;
    c.master->handle(m, c.now, [&](const Result<HeartbeatReply>& r) { answer = *r; });
  };
  beat(first->fence, done + 10);
  REQUIRE(answer);
  CHECK(answer->status == static_cast<uint8_t>(BeatStatus::kRemount));
  CHECK_FALSE(removed);
  beat(second->fence, 0);
  REQUIRE(answer);
  REQUIRE(answer->orders.size() == 1);
  beat(second->fence, answer->orders[0]->seq);
  CHECK(removed);
}

}  // namespace mc::store
