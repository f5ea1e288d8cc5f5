// What clients leave unread.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "http/connections.h"
#include "http/pace.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;
using namespace std::chrono_literals;

TEST_CASE("answers that clients leave unread are bounded in all: who left most is closed") {
  SteadyClock clock;
  io::Loop loop(clock);
  std::vector<Exchange> seen;
  ServerOptions options;
  options.answers_max = Bytes{64 << 20};
  const auto server =
      Server::open(loop, "127.0.0.1:0", options, [&](Exchange x) { seen.push_back(std::move(x)); });
  REQUIRE(server);
  using http::testing::RawClient;
  const std::string& address = (*server)->address();
  RawClient patient(loop, address), slow(loop, address), slowest(loop, address);
  for (RawClient* client : {&patient, &slow, &slowest}) {
    const size_t before = seen.size();
    client->send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(http::testing::wait_until(loop, [&] { return seen.size() > before; }));
    seen.back().start(200, "text/plain");
  }
  seen[1].write(std::string(24 << 20, 'x'));
  seen[2].write(std::string(72 << 20, 'x'));
  CHECK(http::testing::wait_until(loop, [&] { return seen[2].gone(); }));
  seen[0].write("still here");
  CHECK(patient.wait_for("still here"));
  CHECK_FALSE(seen[1].gone());
}

namespace {

// Connections without a server, which shows no more than a sum.
struct Bare {
  io::Loop& loop;
  EventThread thread{loop};
  std::vector<Arrival> seen;
  size_t gone = 0;
  Connections connections;
  std::string address;

  Bare(io::Loop& l, const ServerOptions& options)
      : loop(l),
        connections(thread, options,
                    {.arrived =
                         [this](Arrival a) {
                           thread.to_loop([this, arrived = std::move(a)]() mutable {
                             seen.push_back(std::move(arrived));
                           });
                         },
                     .gone = [this](uint64_t) { thread.to_loop([this] { ++gone; }); },
                     .taken = [](uint64_t) {}}) {
    const auto port = connections.listen("127.0.0.1", 0);
    REQUIRE(port);
    address = "127.0.0.1:" + std::to_string(*port);
    thread.start();
  }
  ~Bare() { thread.stop(); }
  Bare(const Bare&) = delete;
  Bare& operator=(const Bare&) = delete;
  void write(const Arrival& to, std::string bytes) {
    to.flow->wrote(bytes.size());
    thread.inbox()->post([this, id = to.exchange, b = std::move(bytes)]() mutable {
      connections.send(id, std::move(b), false, true);
    });
  }
};

}  // namespace

TEST_CASE("answers that are written at once are never more than the bound, but for one of them") {
  constexpr size_t kOne = 2 << 20, kAll = 16 << 20;
  SteadyClock clock;
  io::Loop loop(clock);
  std::promise<void> written;
  std::atomic<bool> stands{false};
  ServerOptions options;
  options.answers_max = Bytes{kAll};
  options.refusal = [&stands, done = written.get_future().share()](int, const std::string&,
                                                                   std::string_view) {
    stands = true;
    done.wait();  // the server's thread waits with it
    return Page{"text/plain", "no\n"};
  };
  Bare bare(loop, options);
  using http::testing::RawClient;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < 40; ++i) {
    auto& client = *clients.emplace_back(std::make_unique<RawClient>(loop, bare.address));
    client.small_buffer();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(http::testing::wait_until(loop, [&] { return bare.seen.size() > i; }));
  }
  RawClient rude(loop, bare.address);
  rude.send("not HTTP\r\n\r\n");
  CHECK(http::testing::wait_until(loop, [&] { return stands.load(); }));
  for (const Arrival& a : bare.seen) bare.write(a, std::string(kOne, 'x'));
  CHECK(bare.connections.totals->untaken == 0);
  CHECK(bare.connections.totals->unread() ==
        40 * kOne);  // it counts where it waits to be sent, too
  std::atomic<size_t> most{0};
  std::atomic<bool> over{false};
  std::thread looks([&] {
    while (!over) most = std::max(most.load(), bare.connections.totals->untaken.load());
  });
  written.set_value();
  const bool closed = http::testing::wait_until(
      loop, [&] { return bare.gone >= 25 && bare.connections.totals->unread() <= kAll; });
  over = true;
  looks.join();
  most = std::max(most.load(), bare.connections.totals->untaken.load());
  CHECK(closed);
  CHECK(most > kAll / 2);
  CHECK(most <= kAll + 2 * kOne);
  CHECK(bare.connections.totals->unread() > kAll / 2);  // those that are left have their place
  CHECK(bare.connections.totals->unwritten == 0);
}

TEST_CASE(
    "a client that takes too little in a whole window is too slow, however fast it was before") {
  AnswerPace pace(240, 5min);
  Time now{};
  uint64_t left = 0;
  // Some bytes are taken, and as many written, for so many looks of 15 s.
  const auto takes = [&](uint64_t bytes, int looks) {
    bool kept = pace.keeps(left, now);
    for (int i = 0; i < looks; ++i) {
      pace.wrote(bytes);
      kept = pace.keeps(left, now += 15s) && kept;
    }
    return kept;
  };
  pace.wrote(left = 256 << 10);
  CHECK(takes(240 * 15, 100));
  SUBCASE("a little less is too little") { CHECK_FALSE(takes(239 * 15, 40)); }
  SUBCASE("in steps it is the same") {
    for (int i = 0; i < 5; ++i) {
      CHECK(takes(0, 19));
      CHECK(takes(240 * 300, 1));
    }
    CHECK_FALSE(takes(0, 40));
  }
  SUBCASE("bytes that stay in its socket are not taken") {
    for (int i = 0; i < 19; ++i) CHECK(pace.keeps(left += 240 * 15, now += 15s));
    pace.wrote(20 * 240 * 15);
    CHECK_FALSE(pace.keeps(left += 240 * 15, now += 15s));
  }
  SUBCASE("who has taken all begins anew") {
    for (int i = 0; i < 5; ++i) {
      CHECK(takes(0, 19));
      pace.caught_up();
    }
  }
  SUBCASE("a process that stood still takes nobody for slow") {
    for (int i = 0; i < 5; ++i) {
      CHECK(takes(0, 18));
      CHECK(pace.keeps(left, now += 10min));
    }
    CHECK_FALSE(takes(0, 20));
  }
}

TEST_CASE("a client that takes its answer too slowly is closed, and others are not") {
  SteadyClock clock;
  io::Loop loop(clock);
  std::vector<Exchange> seen;
  ServerOptions options;
  options.answer_rate_min = Bytes{1 << 30};
  options.answer_rate_time = 400ms;
  const auto server =
      Server::open(loop, "127.0.0.1:0", options, [&](Exchange x) { seen.push_back(std::move(x)); });
  REQUIRE(server);
  using http::testing::RawClient;
  RawClient fast(loop, (*server)->address()), slow(loop, (*server)->address());
  slow.small_buffer();
  for (RawClient* client : {&fast, &slow}) {
    const size_t before = seen.size();
    client->send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(http::testing::wait_until(loop, [&] { return seen.size() > before; }));
    seen.back().start(200, "text/plain");
  }
  seen[0].write("all of it");
  seen[1].write(std::string(32 << 20, 'x'));
  CHECK(http::testing::wait_until(loop, [&] {
    (void)slow.take(1000);
    return seen[1].gone();
  }));
  CHECK(fast.wait_for("all of it"));
  CHECK_FALSE(seen[0].gone());
}
