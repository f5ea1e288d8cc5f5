// Answers that wait for who takes them: a server tells when its client has taken enough, and a
// client reads no more of one that is held.
#include <doctest/doctest.h>

#include <algorithm>

#include "http/client.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;
using http::testing::RawClient;
using http::testing::wait_until;
using namespace std::chrono_literals;

namespace held_answers_test {

namespace {

struct Fixture {
  SteadyClock clock;
  io::Loop loop{clock};
  std::vector<Exchange> seen;
  std::unique_ptr<Server> server;

  explicit Fixture(const ServerOptions& options = {}) {
    auto opened = Server::open(loop, "127.0.0.1:0", options, [this](Exchange x) {
      if (x.request().path == "/pass") return x.reply(200, "text/plain", "");
      seen.push_back(std::move(x));
    });
    REQUIRE(opened);
    server = std::move(*opened);
  }
  RawClient asked() {
    RawClient c(loop, server->address());
    const size_t before = seen.size();
    c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(wait_until(loop, [&] { return seen.size() > before; }));
    return c;
  }
  // The server's thread has taken what was sent before.
  void pass() { CHECK(http::testing::ask_at(loop, server->address(), "/pass", "").status == 200); }
};

constexpr size_t kMuch = 32 << 20;  // more than sockets take

}  // namespace

TEST_CASE("a server tells once that its client has taken so much") {
  Fixture f;
  auto c = f.asked();
  const Exchange x = f.seen[0];
  x.start(200, "text/plain");
  int told = 0;
  x.on_taken(0, [&] { ++told; });  // nothing waits
  REQUIRE(wait_until(f.loop, [&] { return told == 1; }));
  x.write(std::string(kMuch, 'x'));
  size_t left = 0;
  x.on_taken(kMuch / 4, [&] {
    ++told;
    left = x.unsent();
  });
  f.pass();
  CHECK(told == 1);
  REQUIRE(wait_until(f.loop, [&] { return c.got("never") || told > 1; }));
  CHECK(left <= kMuch / 4);
  REQUIRE(wait_until(f.loop, [&] { return c.got("never") || x.unsent() == 0; }));
  f.pass();
  CHECK(told == 2);
  x.end();
  CHECK(c.wait_for("0\r\n\r\n"));
}

TEST_CASE("nobody hears of a client that left, or of an answer that has ended") {
  Fixture f;
  auto a = f.asked(), b = f.asked();
  int told = 0;
  for (const Exchange& x : f.seen) {
    x.start(200, "text/plain");
    x.write(std::string(kMuch, 'x'));
    x.on_taken(kMuch / 4, [&] { ++told; });
  }
  a.close();
  CHECK(wait_until(f.loop, [&] { return f.seen[0].gone(); }));
  f.seen[1].end();
  CHECK(wait_until(f.loop, [&] { return b.got("\r\n0\r\n\r\n"); }));
  f.pass();
  CHECK(told == 0);
}

TEST_CASE("a client that takes nothing is closed, though its answer waits for it") {
  ServerOptions options;
  options.idle_timeout = 2s;
  Fixture f(options);
  auto c = f.asked();
  f.seen[0].start(200, "text/plain");
  f.seen[0].write(std::string(kMuch, 'x'));
  f.seen[0].on_taken(0, [] { FAIL("it takes nothing"); });
  CHECK(wait_until(f.loop, [&] { return f.seen[0].gone(); }));
}

// Sockets hold so much that they ask for more only now and then.
TEST_CASE("a client that takes bytes all the time is not closed, however few they are") {
  ServerOptions options;
  options.idle_timeout = options.answer_rate_time = 4s;
  Fixture f(options);
  auto c = f.asked();
  c.small_buffer();
  const Exchange x = f.seen[0];
  const std::string much(kMuch, 'x');
  SUBCASE("of an answer that goes on") {
    x.start(200, "text/plain");
    x.write(much);
  }
  SUBCASE("of one that has ended") { x.reply(200, "text/plain", much); }
  f.pass();
  size_t came = 0;
  Duration past{};
  for (const Time from = f.clock.now(); past < 8s; past = f.clock.now() - from) {
    const auto due = static_cast<size_t>(past / 1ms) * 25;
    came += c.take(due - std::min(due, came));
    f.loop.turn(5ms);
  }
  CHECK(f.server->unread() > kMuch / 2);
}

TEST_CASE("a client that ended its sending side gets all that it takes slowly") {
  ServerOptions options;
  options.half_closed_time = 1ms;
  Fixture f(options);
  auto c = f.asked();
  const Exchange x = f.seen[0];
  x.start(200, "text/plain");
  x.write(std::string(kMuch, 'x'));
  c.end_sending();
  for (const Time from = f.clock.now(); f.clock.now() - from < 50ms;) f.pass();
  CHECK_FALSE(x.gone());
  x.end();
  CHECK(wait_until(f.loop, [&] { return c.got("\r\n0\r\n\r\n"); }));
  CHECK(c.received().size() > kMuch);
  CHECK(c.wait_closed());
}

TEST_CASE("a client reads no more of an answer that is held, and goes on with others") {
  Fixture f;
  Client client(f.loop);
  size_t came = 0;
  bool done = false, other = false;
  Client::Id id = 0;
  ClientCallbacks calls;
  calls.on_chunk = [&](std::string_view chunk, Time) {
    if (came == 0) client.hold(id, true);
    came += chunk.size();
  };
  calls.on_done = [&](const Result<ClientResponse>& r) { done = r.has_value(); };
  ClientRequest ask;
  ask.url = "http://" + f.server->address() + "/";
  id = client.send(ask, calls);
  REQUIRE(wait_until(f.loop, [&] { return f.seen.size() == 1; }));
  const Exchange x = f.seen[0];
  x.start(200, "text/plain");
  x.write(std::string(2 * kMuch, 'x'));
  x.end();
  ask.url += "pass";
  ClientCallbacks others;
  others.on_done = [&](const Result<ClientResponse>& r) { other = r.has_value(); };
  client.send(ask, others);
  REQUIRE(wait_until(f.loop, [&] { return other && came > 0; }));
  for (int i = 0; i < 20; ++i) f.pass();
  CHECK(came <= 2 << 20);
  CHECK_FALSE(done);
  SUBCASE("until it goes on") {
    client.hold(id, false);
    CHECK(wait_until(f.loop, [&] { return done; }));
    CHECK(came == 2 * kMuch);
  }
  SUBCASE("and it may be given up") {
    client.cancel(id);
    CHECK(wait_until(f.loop, [&] { return f.server->open_exchanges() == 0; }));
    CHECK(client.in_flight() == 0);
  }
}

}  // namespace held_answers_test
