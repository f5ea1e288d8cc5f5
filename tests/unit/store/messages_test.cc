#include "store/protocol/messages.h"

#include "store/protocol/node_messages.h"
#include "store/protocol/query_messages.h"

#include <doctest/doctest.h>

#include "base/random.h"
#include "store/node/directory.h"

namespace mc::store {
namespace {

template <class M>
void survives_damage(const M& message) {
  CAPTURE(M::kName);
  const std::string bytes = wire::encode(message);
  const auto back = wire::decode<M>(bytes);
  REQUIRE(back);
  CHECK(wire::encode(*back) == bytes);
  for (size_t n = 0; n < bytes.size(); ++n) (void)wire::decode<M>(bytes.substr(0, n));
  Random random(3);
  for (int i = 0; i < 500; ++i) {
    std::string bad = bytes;
    bad[random.below(bad.size())] = static_cast<char>(random.below(256));
    (void)wire::decode<M>(bad);
  }
}

TEST_CASE("every message reads back what was written, and damaged ones crash nothing") {
  const Generation g{uint64_t{1'700'000'000} << 32 | 7};
  const NodeRef node{"n1", "127.0.0.1:5570", g};
  const ObjectRecord record{"key", 4096, 100, 0x1234567890abcdef, g};
  survives_damage(PutStart{{{"a", 1}, {"b", UINT64_MAX}}, 2, "n1", 100});
  PutStart avoids{{{"a", 1}}, 1, "", 0};
  avoids.avoid = {"n1", "n2"};
  survives_damage(avoids);
  survives_damage(PutStarted{5, {node}, {{{}, g, {{0, 4096, 8}}}, {{3, "stored"}, {}, {}}}});
  survives_damage(PutEnd{{{"a", g, 77}}});
  survives_damage(PutRevoke{{{"a", g, 0}}});
  survives_damage(Outcomes{5, {{}, {8, "stale"}}});
  survives_damage(GetReplicas{{"a", "b"}, 500});
  survives_damage(Replicas{5, 10000, {node}, {{{}, 100, 77, g, {{0, 4096, 8}}}}});
  survives_damage(Exists{{"a"}});
  survives_damage(Existing{5, {1, 0}});
  survives_damage(MatchPrefix{{"a"}});
  survives_damage(MatchBlocks{{"a@", "b@"}, {std::string(64, 'h')}, 32});
  survives_damage(Matched{5, 1});
  survives_damage(Remove{{"a"}, true});
  survives_damage(List{"p", "q", 10});
  survives_damage(Listed{5, {{"a", 1, 2, g, 1, true}}, true});
  survives_damage(Stat{});
  survives_damage(
      ClusterStat{5, 1, 2, 3, 4, 5, 6, 7, 8, {{"n", "c", "ready", g, 1, 2, 3, 4, .5}}, "why"});
  survives_damage(ReportNode{"n1", g});
  survives_damage(ReportReplica{"k", "t", "n1", g});
  survives_damage(Mount{node, {4096, 8192, 0}, 5, 2});
  survives_damage(Inventory{"n1", g, {record}, true});
  survives_damage(Unmount{"n1", g});
  survives_damage(Mounted{5, 2});
  survives_damage(Heartbeat{"n1", g, 9, 1000, {4, 7}});
  survives_damage(HeartbeatReply{5, 1, {{std::make_shared<Order>(Order{9, 2, record, g})}}, 2});
}

TEST_CASE("the bytes of put-start on the wire are these") {
  const std::string bytes = wire::encode(PutStart{{{"k", 1}}, 1, "", 0});
  // array 14: [ array 1: [ array 2: ["k", 1] ], 1, "", 0, tenant "", host "", false, 0, 0, 0, "",
  //             false, nonce 0, avoid array 0 ]
  const std::string want(
      "\x9e\x91\x92\xa1k\x01\x01\xa0\x00\xa0\xa0\xc2\x00\x00\x00\xa0\xc2\x00\x90", 19);
  CHECK(bytes == want);
}

TEST_CASE("a directory carries out orders twice without harm, and none outside its segment") {
  const Layout layout{kPage, 4 * kPage, 0};
  Directory directory(layout);
  const auto order = [](OrderKind kind, uint64_t offset, uint64_t bytes, uint64_t generation) {
    return Order{1,
                 static_cast<uint8_t>(kind),
                 {"k", offset, bytes, 1, Generation{generation}},
                 Generation{generation + 1}};
  };
  CHECK(directory.carry_out(order(OrderKind::kRecord, kPage, 10, 5)));
  CHECK(directory.carry_out(order(OrderKind::kRecord, kPage, 10, 5)));
  CHECK(directory.objects() == 1);
  CHECK(directory.bytes() == 10);
  CHECK(directory.carry_out(order(OrderKind::kForget, kPage, 10, 4)));  // of an older object
  CHECK(directory.objects() == 1);
  CHECK(directory.carry_out(order(OrderKind::kForget, kPage, 10, 5)));
  CHECK(directory.carry_out(order(OrderKind::kForget, kPage, 10, 5)));
  CHECK(directory.objects() == 0);
  CHECK(directory.bytes() == 0);
  CHECK(directory.newest() == Generation{6});
  CHECK_FALSE(directory.carry_out(order(OrderKind::kRecord, 0, 10, 5)));
  CHECK_FALSE(directory.carry_out(order(OrderKind::kRecord, 5 * kPage, 10, 5)));
  CHECK_FALSE(directory.carry_out(order(OrderKind::kRecord, 4 * kPage, kPage + 1, 5)));
  CHECK_FALSE(directory.carry_out(order(OrderKind::kRecord, kPage + 8, 10, 5)));
  CHECK_FALSE(directory.carry_out(order(OrderKind::kRecord, kPage, UINT64_MAX, 5)));
  CHECK_FALSE(directory.carry_out(order(static_cast<OrderKind>(9), kPage, 10, 5)));
}

}  // namespace
}  // namespace mc::store
