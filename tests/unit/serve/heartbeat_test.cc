#include "serve/runtime/heartbeat.h"

#include <doctest/doctest.h>

#include <chrono>

#include "rpc/server.h"

namespace mc::serve {

namespace heartbeat_test {

namespace {

using namespace std::chrono_literals;

// A conductor that keeps the events in order; its answers ask for those it misses.
struct Listener {
  Listener(io::Loop& loop, Metrics& metrics, const std::string& address = "127.0.0.1:0") {
    auto opened = rpc::Server::open(loop, address, metrics);
    for (int i = 0; i < 1000 && !opened; ++i) {  // ZeroMQ releases a port a little later
      REQUIRE(loop.turn(std::chrono::milliseconds(1)));
      opened = rpc::Server::open(loop, address, metrics);
    }
    REQUIRE(opened);
    server = std::move(*opened);
    server->on<Heartbeat>([this](const Heartbeat& m, const rpc::Call&) -> Result<HeartbeatAck> {
      ++beats;
      last = m;
      if (!m.events.empty() && m.events_first > seen + 1) gap = true;
      uint64_t number = m.events_first;
      for (const KvEvent& e : m.events)
        if (number++ == seen + 1) {
          keys.push_back(e.hash);
          ++seen;
        }
      return HeartbeatAck{epoch, seen, server->address(), release};
    });
  }
  std::unique_ptr<rpc::Server> server;
  Heartbeat last;
  int beats = 0;
  uint64_t epoch = 1;
  wire::Release release;
  bool gap = false;
  uint64_t seen = 0;
  std::vector<BlockHash> keys;
};

struct Setting {
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  BlockManager cache;
  explicit Setting(size_t events_max = 1 << 16) : cache(64, 4, 1, events_max) {}

  // Commits a prompt of `blocks` new blocks.
  void store(int32_t first, size_t blocks) {
    std::vector<int32_t> tokens(blocks * 4, first);
    const auto tx = cache.allocate({"r", chain_hashes(tokens, 4), tokens.size(), blocks, 1s}, {});
    REQUIRE(tx);
    REQUIRE(cache.start(*tx));
    cache.computed(*tx, blocks);
    REQUIRE(cache.commit(*tx));
  }
  std::unique_ptr<Heartbeats> beat(const std::vector<std::string>& to, Duration period = 20ms) {
    Heartbeat me;
    me.node = "p0";
    me.role = "prefill";
    auto opened = Heartbeats::open(
        loop, me, to, period, &cache,
        [](Heartbeat& b, const std::string& conductor) {
          b.load.waiting = 5;
          b.model = conductor;
        },
        metrics);
    REQUIRE(opened);
    return std::move(*opened);
  }
  bool until(const std::function<bool()>& done) {
    const Time end = clock.now() + 10s;
    while (!done() && clock.now() < end) REQUIRE(loop.turn(20ms));
    return done();
  }
};

TEST_CASE("every conductor gets the load and each event once, in order") {
  Setting s;
  Listener one(s.loop, s.metrics), two(s.loop, s.metrics);
  s.store(1, 3);
  const auto beats = s.beat({one.server->address(), two.server->address()});
  REQUIRE(s.until([&] { return one.seen == 3 && two.seen == 3; }));
  s.store(2, 4);
  beats->nudge();
  REQUIRE(s.until([&] { return one.seen == 7 && two.seen == 7; }));
  CHECK(one.keys == two.keys);
  CHECK(one.last.load.waiting == 5);
  CHECK(one.last.node == "p0");
  CHECK_FALSE(one.gap);
  CHECK(beats->joined() == 2);
}

TEST_CASE(
    "each of several conductors hears of the others, and its load is told apart from theirs") {
  Setting s;
  Listener one(s.loop, s.metrics), two(s.loop, s.metrics);
  two.epoch = 2;
  const auto beats = s.beat({one.server->address(), two.server->address()});
  REQUIRE(s.until([&] { return one.last.joined.size() == 2 && two.last.joined.size() == 2; }));
  CHECK(two.last.joined == std::vector<uint64_t>{1, 2});
  CHECK(two.last.conductors == 2);
  CHECK(one.last.model == one.server->address());
  CHECK(two.last.model == two.server->address());
  one.server.reset();
  CHECK(s.until([&] { return two.last.joined == std::vector<uint64_t>{2}; }));
}

TEST_CASE("a conductor of a release without a common protocol is not joined (F124)") {
  Setting s;
  Listener one(s.loop, s.metrics);
  one.release = {"9.9.9", wire::kProtocolMax + 1, wire::kProtocolMax + 1};
  const auto beats = s.beat({one.server->address()});
  REQUIRE(s.until([&] { return !beats->last_error().empty(); }));
  CHECK(one.last.release.build == wire::this_release().build);
  CHECK(one.last.release.protocol_max == wire::kProtocolMax);
  CHECK(beats->joined() == 0);
  CHECK(beats->last_error().find("the conductor is mc 9.9.9 (protocol ") != std::string::npos);
  one.release = {"9.9.9", 0, wire::kProtocolMax};
  CHECK(s.until([&] { return beats->joined() == 1; }));
}

TEST_CASE("a state change sends a beat at once, not with the next period") {
  Setting s;
  Listener one(s.loop, s.metrics);
  const auto beats = s.beat({one.server->address()}, 1h);
  REQUIRE(s.until([&] { return one.beats == 1; }));
  s.store(1, 1);
  beats->nudge();
  beats->nudge();
  CHECK(s.until([&] { return one.seen == 1; }));
}

TEST_CASE("a conductor that joins late, or again, gets every event it has not seen") {
  Setting s;
  std::string address;
  {
    Listener gone(s.loop, s.metrics);
    address = gone.server->address();
  }
  const auto beats = s.beat({address});
  s.store(1, 2);
  REQUIRE(s.until([&] { return !beats->last_error().empty(); }));
  CHECK(beats->joined() == 0);
  {
    Listener late(s.loop, s.metrics, address);
    REQUIRE(s.until([&] { return late.seen == 2; }));
    CHECK(s.until([&] { return beats->joined() == 1 && beats->last_error().empty(); }));
  }
  s.store(2, 1);
  Listener again(s.loop, s.metrics, address);  // remembers nothing
  CHECK(s.until([&] { return again.seen == 3; }));
}

TEST_CASE("events that are no longer kept show as a gap") {
  Setting s(4);
  s.store(1, 10);
  Listener one(s.loop, s.metrics);
  const auto beats = s.beat({one.server->address()});
  REQUIRE(s.until([&] { return one.gap; }));
  CHECK(one.last.events_last == 10);
  one.seen = 10;  // as after a snapshot
  s.store(2, 1);
  CHECK(s.until([&] { return one.seen == 11; }));
}

TEST_CASE("a malformed conductor address is refused") {
  Setting s;
  CHECK_FALSE(Heartbeats::open(
      s.loop, {}, {"nowhere"}, 1s, nullptr, [](Heartbeat&, const std::string&) {}, s.metrics));
}

}  // namespace

}  // namespace heartbeat_test
}  // namespace mc::serve
