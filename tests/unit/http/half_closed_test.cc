// Clients that end their sending side, and read on.
#include <doctest/doctest.h>

#include <csignal>

#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;
using namespace std::chrono_literals;

namespace half_closed_test {

namespace {

struct Fixture {
  SteadyClock clock;
  io::Loop loop{clock};
  std::vector<Exchange> seen;
  std::unique_ptr<Server> server;

  explicit Fixture(Duration half_closed_time) {
    ServerOptions options;
    options.half_closed_time = half_closed_time;
    auto opened = Server::open(loop, "127.0.0.1:0", options, [this](Exchange x) {
      if (x.request().path == "/pass") return x.reply(200, "text/plain", "");
      seen.push_back(std::move(x));
    });
    REQUIRE(opened);
    server = std::move(*opened);
  }
  http::testing::RawClient client() { return {loop, server->address()}; }
  bool arrived(size_t n) {
    return http::testing::wait_until(loop, [&] { return seen.size() >= n; });
  }
  // The server's thread has taken what was sent before.
  void pass() { CHECK(http::testing::ask_at(loop, server->address(), "/pass", "").status == 200); }
};

std::string get(const char* path) {
  return std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
}

}  // namespace

TEST_CASE("a client that ends its sending side gets its answers, if they come soon") {
  Fixture f(1h);
  std::string more;
  SUBCASE("to one request") {}
  SUBCASE("to several, and what is no whole one ends it") { more = get("/2") + "GET /3 HT"; }
  auto c = f.client();
  c.send(get("/1") + more);
  c.end_sending();
  for (size_t i = 0; i < (more.empty() ? 1 : 2); ++i) {
    REQUIRE(f.arrived(i + 1));
    f.pass();
    CHECK(!f.seen[i].gone());
    const std::string text = "answer " + std::to_string(i) + "\n";
    f.seen[i].reply(200, "text/plain", text);
    CHECK(c.wait_for(text));
  }
  CHECK(c.wait_closed());
}

TEST_CASE("a client that ended its sending side and gets no answer soon is gone") {
  Fixture f(1ms);
  auto c = f.client();
  c.send(get("/1") + get("/2"));
  c.end_sending();
  REQUIRE(f.arrived(1));
  REQUIRE(http::testing::wait_until(f.loop, [&] { return f.seen[0].gone(); }));
  CHECK(c.wait_closed());
  CHECK(f.seen.size() == 1);
}

TEST_CASE("a client that ended its sending side gets a stream that goes on, as fast as it reads") {
  constexpr Duration kTime = 200ms;
  Fixture f(kTime);
  for (bool even = false; !even;) {  // else this process stood still: again
    auto c = f.client();
    Time last = f.clock.now();
    c.send(get("/1"));
    c.end_sending();
    REQUIRE(f.arrived(f.seen.size() + 1));
    const Exchange x = f.seen.back();
    x.start(200, "text/event-stream");
    const Time from = f.clock.now();
    even = from - last < kTime / 2;
    for (last = from; last - from < 3 * kTime;) {
      x.write("data: 1\n\n");
      REQUIRE(f.loop.turn(5ms));
      c.got("");
      even = even && f.clock.now() - last < kTime / 2;
      last = f.clock.now();
    }
    const bool gone = x.gone();
    x.write("data: last\n\n");
    x.end();
    even = even && f.clock.now() - last < kTime / 2;
    if (!even) continue;
    CHECK_FALSE(gone);
    CHECK(c.wait_for("data: last"));
    CHECK(c.wait_closed());
  }
}

TEST_CASE("that such a client is gone is seen by a write to it, and no signal ends the process") {
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  Fixture f(1h);
  auto c = f.client();
  c.send(get("/1"));
  c.end_sending();
  REQUIRE(f.arrived(1));
  f.seen[0].start(200, "text/event-stream");
  CHECK(c.wait_for("200 OK"));
  c.close();
  CHECK(http::testing::wait_until(f.loop, [&] {
    f.seen[0].write("data: 1\n\n");
    return f.seen[0].gone();
  }));
  std::signal(SIGPIPE, before);
}

}  // namespace half_closed_test
