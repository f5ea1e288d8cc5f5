// Nodes that the master hears and a client does not reach.
#include "store/client/unreached_nodes.h"

#include <doctest/doctest.h>

#include <atomic>

#include "tests/unit/store/fake_cluster.h"
#include "tests/unit/store/live_cluster.h"

namespace mc::store {
namespace unreached_nodes_test {
namespace {

// A node that mounts and beats, at an address where nobody answers for its memory.
class OutOfReach {
 public:
  OutOfReach(const std::string& master, const std::string& control, uint64_t bytes,
             std::vector<ObjectRecord> holds = {})
      : node_{"far", control, Generation{7}} {
    auto rpc = rpc::SyncClient::connect(master, clock_, rpc::Channel::kZeroMq);
    REQUIRE(rpc);
    client_ = std::move(*rpc);
    const auto mounted = client_->call(Mount{node_, Layout{0, bytes, uint64_t{1} << 40}}, 10s);
    REQUIRE_MESSAGE(mounted, mounted.error().what);
    mount_ = mounted->fence;
    Inventory inventory{node_.name, node_.generation, std::move(holds), true};
    inventory.mount = mount_;
    REQUIRE(client_->call(inventory, 10s));
    thread_ = std::thread([this] { beat(); });
  }
  ~OutOfReach() {
    stopped_ = true;
    thread_.join();
  }

 private:
  void beat() {
    Heartbeat heartbeat{node_.name, node_.generation, 0, 1};
    heartbeat.mount = mount_;
    while (!stopped_) {
      const auto reply = client_->call(heartbeat, 1s);
      if (reply && !reply->orders.empty()) heartbeat.done = reply->orders.back()->seq;
    }
  }
  SteadyClock clock_;
  NodeRef node_;
  Generation mount_;
  std::unique_ptr<rpc::SyncClient> client_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

TEST_CASE("puts go to nodes that their client reaches, though others beat") {
  Cluster cluster(64 * kMiB);
  Caller caller(cluster);
  // It refuses connections at once; the other answers that it does not know such messages.
  for (const bool answers : {false, true}) {
    CAPTURE(answers);
    const OutOfReach far(cluster.master->control(),
                         answers ? cluster.master->control() : "127.0.0.1:1", 1 * kGiB);
    for (uint64_t i = 0; i < 24; ++i) {
      const std::string key = (answers ? "a" : "r") + std::to_string(i);
      const auto put = caller.client->put(key, noise(5000, i));
      REQUIRE_MESSAGE(put, put.error().what);
      const auto got = caller.client->get(key);
      REQUIRE_MESSAGE(got, got.error().what);
      CHECK(*got == noise(5000, i));
    }
  }
}

// Each read that tries the node reports it.
TEST_CASE(
    "a read takes a node that it did not reach lately after the others, though it is nearer") {
  Cluster cluster(64 * kMiB, {"tcp"});
  Caller caller(cluster);
  const auto value = noise(5000, 1);
  REQUIRE(caller.client->put("k", value));
  const auto at = caller.client->locate("k");
  REQUIRE(at);
  const OutOfReach far(cluster.master->control(), "127.0.0.1:1", 1 * kGiB,
                       {{"k", 0, at->bytes, at->checksum, at->generation}});
  REQUIRE(caller.client->locate("k")->places.size() == 2);
  ManualClock clock;  // it is lately for ever
  clock.advance_to(caller.clock.now());
  ClientOptions options = caller.options;
  options.timeout = 60s;
  auto client = Client::open(*caller.engine, clock, options, caller.metrics);
  REQUIRE(client);
  const Counter& reports = cluster.metrics.counter(
      "mc_rpc_requests_total", "control messages by type", {{"type", ReportNode::kName}});
  for (int i = 0; i < 10; ++i) {
    const auto got = (*client)->get("k");
    REQUIRE_MESSAGE(got, got.error().what);
    CHECK(*got == value);
    // Until it is heard again after a report it is no candidate anyway.
    while (caller.client->locate("k")->healthy < 2) {
    }
  }
  CHECK(reports.value() == 1);
}

TEST_CASE("a put that names nodes out of its reach gets others, and these only for want of room") {
  FakeCluster cluster;
  cluster.add("near", 4 * kPage);
  cluster.add("far", 1000 * kPage);
  PutStart put;
  put.avoid = {"far", "no such node"};
  put.prefer = "far";
  put.replicas = 2;
  const auto used = [&](const NodeId& node) {
    for (const NodeStat& n : cluster.master->handle(Stat{}, cluster.now).nodes)
      if (n.name == node) return n.used;
    return uint64_t{0};
  };
  for (int i = 0; i < 4; ++i) {
    const PutGrant grant = cluster.grant(put, "k" + std::to_string(i), kPage);
    REQUIRE(grant.outcome.ok());
    CHECK(grant.places.size() == 1);  // a second one there could not be written
  }
  CHECK(used("near") == 4 * kPage);
  CHECK(used("far") == 0);
  const PutGrant last = cluster.grant(put, "last", kPage);
  REQUIRE(last.outcome.ok());
  CHECK(last.places.size() == 1);
  CHECK(used("far") == kPage);
}

TEST_CASE("a node that was not reached is avoided for 2 s, and longer each time, up to a minute") {
  UnreachedNodes nodes;
  Time now{1000s};
  CHECK(nodes.now(now).empty());
  for (const Duration pause : {2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
    nodes.failed("a", now);
    nodes.failed("a", now);  // another put that was under way
    CHECK(nodes.now(now + pause - 1ms) == std::vector<NodeId>{"a"});
    CHECK(nodes.has("a", now + pause - 1ms));
    CHECK_FALSE(nodes.has("b", now));
    now += pause;
    CHECK(nodes.now(now).empty());
    CHECK_FALSE(nodes.has("a", now));
  }
  now += 121s;  // it worked meanwhile
  nodes.failed("a", now);
  CHECK(nodes.now(now + 2s).empty());
  for (int i = 0; i < 1000; ++i) nodes.failed(std::to_string(i), now);
  CHECK(nodes.now(now).size() == kAvoidMax);
}

}  // namespace
}  // namespace unreached_nodes_test
}  // namespace mc::store
