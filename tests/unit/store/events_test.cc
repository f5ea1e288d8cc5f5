// Events as a subscriber gets them: numbered without gaps, and replayed when it missed some.
#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "rpc/client.h"
#include "rpc/server.h"
#include "rpc/socket.h"
#include "store/client/client.h"
#include "store/node/node.h"
#include "store/service/master_service.h"

namespace mc::store {
namespace {

using namespace std::chrono_literals;

struct Pool {
  Pool() : loop(clock) {
    MasterServiceOptions m;
    m.listen = m.http = m.events = "127.0.0.1:0";
    m.master.lease_ttl = 1ms;
    m.master.event_log = 64;
    auto opened = MasterService::open(loop, m, 1'700'000'000, 1, metrics);
    REQUIRE(opened);
    master = std::move(*opened);
    xfer::EngineOptions options;
    options.node = "n";
    options.transports = {"shm"};
    engine = std::move(*xfer::Engine::open(clock, options, metrics));
    server = std::move(*rpc::Server::open(loop, "127.0.0.1:0", metrics));
    xfer::serve(*engine, *server);
    NodeOptions n;
    n.master = master->control();
    n.size = Bytes{4 * kMiB};
    n.heartbeat = 50ms;
    auto opened_node = StoreNode::open(loop, *engine, "n", server->address(), n, metrics);
    REQUIRE(opened_node);
    node = std::move(*opened_node);
    for (int i = 0; i < 2000 && !node->mounted(); ++i) REQUIRE(loop.turn(5ms));
    REQUIRE(node->mounted());
    thread = std::thread([this] { (void)loop.run(); });
    options.node = "client";
    client_engine = std::move(*xfer::Engine::open(clock, options, client_metrics));
    ClientOptions k;
    k.master = master->control();
    client = std::move(*Client::open(*client_engine, clock, k, client_metrics));
  }
  ~Pool() {
    loop.stop();
    thread.join();
  }
  Result<PutOutcome> put(const std::string& key) {
    return client->put(key, std::as_bytes(std::span(key)));
  }

  SteadyClock clock;
  Metrics metrics, client_metrics;
  io::Loop loop;
  std::unique_ptr<MasterService> master;
  std::unique_ptr<xfer::Engine> engine, client_engine;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<StoreNode> node;
  std::unique_ptr<Client> client;
  std::thread thread;
};

// The messages that come until `enough` says so, or for ten seconds.
template <class F>
std::vector<Event> events_until(rpc::Socket& socket, const F& enough, size_t* largest = nullptr) {
  std::vector<Event> all;
  for (int i = 0; i < 1000 && !enough(all); ++i) {
    if (!socket.wait_readable(10)) continue;
    const auto frames = socket.receive();
    if (frames.empty()) continue;
    REQUIRE(frames.size() == 2);
    CHECK(frames[0] == "mc-store-events");
    if (largest != nullptr) *largest = std::max(*largest, frames[1].size());
    const auto body = wire::decode<Replayed>(frames[1]);
    REQUIRE(body);
    CHECK(body->epoch >= 1'700'000'000);
    CHECK_FALSE(body->gap);
    all.insert(all.end(), body->events.begin(), body->events.end());
  }
  return all;
}

TEST_CASE("a subscriber gets every event in order, and asks for those before it came") {
  Pool p;
  REQUIRE(p.put("early"));
  auto opened = rpc::Socket::connect(rpc::Socket::Kind::kSub, p.master->events());
  REQUIRE(opened);
  rpc::Socket& socket = *opened;
  // A subscription takes a moment: until the first event is seen, more are made.
  std::vector<Event> seen;
  for (int i = 0; i < 200 && seen.empty(); ++i) {
    REQUIRE(p.put("first" + std::to_string(i)));
    if (socket.wait_readable(50))
      seen = events_until(socket, [](const auto& e) { return !e.empty(); });
  }
  REQUIRE(!seen.empty());
  CHECK(seen[0].kind == static_cast<uint8_t>(EventKind::kStored));
  REQUIRE(p.put("k"));
  REQUIRE(p.client->remove({"k"}, true)[0]);
  const auto later = events_until(socket, [](const auto& e) {
    return !e.empty() && e.back().kind == static_cast<uint8_t>(EventKind::kRemoved);
  });
  seen.insert(seen.end(), later.begin(), later.end());
  for (size_t i = 1; i < seen.size(); ++i) CHECK(seen[i].seq == seen[i - 1].seq + 1);
  CHECK(seen.back().key == "k");
  CHECK(seen.back().reason == "removed");
  CHECK(seen[seen.size() - 2].key == "k");
  CHECK(seen[seen.size() - 2].nodes == "n");
  // What came before the subscription.
  const auto missed = p.client->call(Replay{1, 1000});
  REQUIRE(missed);
  CHECK_FALSE(missed->gap);
  CHECK(missed->next == seen.back().seq + 1);
  REQUIRE(missed->events.size() == seen.back().seq);
  CHECK(missed->events[0].key == "early");
  CHECK(missed->events[seen[0].seq - 1].key == seen[0].key);
  // More than are kept: a listing, and the events after it, make up for the gap.
  for (int i = 0; i < 100; ++i) REQUIRE(p.put("many" + std::to_string(i)));
  const auto gap = p.client->call(Replay{1, 1000});
  REQUIRE(gap);
  CHECK(gap->gap);
  const auto snapshot = p.client->list("", "", 10'000);
  REQUIRE(snapshot);
  REQUIRE(p.put("after"));
  const auto rest = p.client->call(Replay{snapshot->next_event, 1000});
  REQUIRE(rest);
  CHECK_FALSE(rest->gap);
  REQUIRE(rest->events.size() == 1);
  CHECK(rest->events[0].key == "after");
}

// What a slow subscriber has not read is bounded by the number of messages.
TEST_CASE("many events at once come in messages of few bytes") {
  Pool p;
  auto opened = rpc::Socket::connect(rpc::Socket::Kind::kSub, p.master->events());
  REQUIRE(opened);
  std::vector<std::string> keys;
  for (int i = 0; i < 50; ++i) keys.push_back(std::to_string(i) + std::string(1000, 'k'));
  for (const std::string& key : keys) REQUIRE(p.put(key));
  bool subscribed = false;
  for (int i = 0; i < 200 && !subscribed; ++i) {
    REQUIRE(p.put("x" + std::to_string(i)));
    subscribed = opened->wait_readable(50);
  }
  REQUIRE(subscribed);
  for (const auto& removed : p.client->remove(keys, true)) REQUIRE(removed);
  size_t largest = 0, removals = 0;
  const auto seen = events_until(
      *opened,
      [&](const auto& e) {
        removals = static_cast<size_t>(std::count_if(e.begin(), e.end(), [](const Event& one) {
          return one.kind == static_cast<uint8_t>(EventKind::kRemoved);
        }));
        return removals == keys.size();
      },
      &largest);
  CHECK(removals == keys.size());
  for (size_t i = 1; i < seen.size(); ++i) CHECK(seen[i].seq == seen[i - 1].seq + 1);
  CHECK(largest < 12'000);
}

}  // namespace
}  // namespace mc::store
