#include "http/server.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;
using http::testing::RawClient;
using http::testing::wait_until;
using namespace std::chrono_literals;

namespace server_test {

namespace {

struct Fixture {
  SteadyClock clock;
  io::Loop loop{clock};
  std::vector<Exchange> seen;
  std::unique_ptr<Server> server;

  explicit Fixture(ServerOptions options = {}, Server::Handler handler = nullptr) {
    if (!handler) handler = [this](Exchange x) { seen.push_back(std::move(x)); };
    auto opened = Server::open(loop, "127.0.0.1:0", options, std::move(handler));
    REQUIRE(opened);
    server = std::move(*opened);
  }
  RawClient client() { return RawClient(loop, server->address()); }
  bool arrived(size_t n) {
    return wait_until(loop, [&] { return seen.size() >= n; });
  }
};

}  // namespace

TEST_CASE("a request arrives whole: method, decoded path and query, headers, body, peer") {
  Fixture f;
  auto c = f.client();
  c.send(
      "POST /a%20b/c?x=1&y=%2f+z HTTP/1.1\r\nHost: localhost\r\nX-Two: a\r\nx-two: b\r\n"
      "Content-Length: 5\r\n\r\nhel");
  CHECK(!wait_until(
      f.loop, [&] { return !f.seen.empty(); }, 20ms));
  c.send("lo");
  REQUIRE(f.arrived(1));
  const Request& r = f.seen[0].request();
  CHECK(r.method == "POST");
  CHECK(r.path == "/a b/c");
  CHECK(r.query.at("x") == "1");
  CHECK(r.query.at("y") == "/ z");
  CHECK(r.headers.at("x-two") == "a, b");
  CHECK(r.body == "hello");
  CHECK(r.peer.starts_with("127.0.0.1:"));
  f.seen[0].reply(200, "text/plain", "bye\n", {{"X-Bad", "a\r\nInjected: yes"}});
  REQUIRE(c.wait_for("bye\n"));
  CHECK(c.received().starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(c.received().find("Content-Length: 4\r\n") != std::string::npos);
  CHECK(c.received().find("\r\nInjected") == std::string::npos);
  CHECK(wait_until(f.loop, [&] { return f.server->open_exchanges() == 0; }));
}

TEST_CASE("a chunked request body arrives whole") {
  Fixture f;
  auto c = f.client();
  c.send(
      "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
  REQUIRE(f.arrived(1));
  CHECK(f.seen[0].request().body == "abcdefg");
}

TEST_CASE("pipelined requests are answered one after the other on one connection") {
  Fixture f;
  auto c = f.client();
  c.send("GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.arrived(1));
  CHECK(!wait_until(
      f.loop, [&] { return f.seen.size() > 1; }, 20ms));
  f.seen[0].reply(200, "text/plain", "first");
  REQUIRE(f.arrived(2));
  CHECK(f.seen[1].request().path == "/2");
  f.seen[1].reply(200, "text/plain", "second");
  CHECK(c.wait_for("second"));
}

TEST_CASE("a client that pipelines requests and reads no answer has few of them made") {
  Fixture f;
  auto c = f.client();
  constexpr size_t kAsked = 400;
  std::string all;
  for (size_t i = 1; i <= kAsked; ++i)
    all += strf("GET /%zu HTTP/1.1\r\nHost: localhost\r\n%s\r\n", i,
                i == kAsked ? "Connection: close\r\n" : "");
  REQUIRE(c.send(all));
  const std::string page(50'000, 'x');
  size_t answered = 0;
  const auto answer = [&] {
    for (; answered < f.seen.size(); ++answered)
      f.seen[answered].reply(200, "text/plain", page + f.seen[answered].request().path + "\n");
  };
  // Until no more come: what the sockets hold, and a little.
  size_t before = 0;
  do {
    before = answered;
    (void)wait_until(
        f.loop,
        [&] {
          answer();
          return answered > before;
        },
        500ms);
  } while (answered > before && answered < kAsked);
  CHECK(answered > 1);
  CHECK(answered < kAsked / 2);
  // Once it reads, it gets all that it asked for.
  CHECK(wait_until(f.loop, [&] {
    answer();
    (void)c.got("");
    return c.closed();
  }));
  CHECK(answered == kAsked);
  CHECK(c.received().ends_with(strf("/%zu\n", kAsked)));
}

TEST_CASE("a last answer ends its connection, whatever the client sends behind its request") {
  Fixture f;
  auto c = f.client();
  REQUIRE(c.send("GET /1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\nX"));
  REQUIRE(f.arrived(1));
  f.seen[0].reply(200, "text/plain", std::string(8'000'000, 'x'));
  REQUIRE(f.loop.turn(20ms));
  c.end_sending();
  CHECK(c.wait_closed());
  CHECK(c.received().size() > 8'000'000);
}

TEST_CASE("a stream leaves write by write") {
  Fixture f;
  auto c = f.client();
  c.send("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.arrived(1));
  const Exchange x = f.seen[0];
  x.start(200, "text/event-stream");
  REQUIRE(c.wait_for("Transfer-Encoding: chunked\r\n"));
  x.write("data: one\n\n");
  REQUIRE(c.wait_for("b\r\ndata: one\n\n\r\n"));
  x.write("data: two\n\n");
  REQUIRE(c.wait_for("data: two\n\n"));
  CHECK(c.received().find("0\r\n\r\n") == std::string::npos);
  CHECK(f.server->open_exchanges() == 1);
  x.end();
  CHECK(c.wait_for("\r\n0\r\n\r\n"));
  CHECK(wait_until(f.loop, [&] { return f.server->open_exchanges() == 0; }));
}

TEST_CASE("a body that is announced too large is refused with 413 before it is sent") {
  ServerOptions options;
  options.body_max = Bytes(1000);
  Fixture f(options);
  auto c = f.client();
  c.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n");
  REQUIRE(c.wait_for("HTTP/1.1 413 Payload Too Large\r\n"));
  CHECK(c.wait_closed());
  CHECK(f.seen.empty());
}

TEST_CASE("a chunked body that grows too large is refused with 413") {
  ServerOptions options;
  options.body_max = Bytes(1000);
  Fixture f(options);
  auto c = f.client();
  c.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 3; ++i) c.send("190\r\n" + std::string(400, 'x') + "\r\n");
  CHECK(c.wait_for("HTTP/1.1 413 "));
  CHECK(f.seen.empty());
}

TEST_CASE("a client that waits for permission to send its body gets it") {
  Fixture f;
  auto c = f.client();
  c.send("POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  REQUIRE(c.wait_for("HTTP/1.1 100 Continue\r\n\r\n"));
  c.send("ok");
  REQUIRE(f.arrived(1));
  CHECK(f.seen[0].request().body == "ok");
}

TEST_CASE("a header that is too large is refused with 431") {
  ServerOptions options;
  options.header_max = Bytes(2000);
  Fixture f(options);
  SUBCASE("one long line") {
    auto c = f.client();
    c.send("GET / HTTP/1.1\r\nX: " + std::string(3000, 'x'));
    CHECK(c.wait_for("HTTP/1.1 431 "));
  }
  SUBCASE("many lines") {
    auto c = f.client();
    c.send("GET / HTTP/1.1\r\n");
    for (int i = 0; i < 500; ++i) c.send("a: b\r\n");
    CHECK(c.wait_for("HTTP/1.1 431 "));
  }
  SUBCASE("a long target") {
    auto c = f.client();
    c.send("GET /" + std::string(3000, 'x'));
    CHECK(c.wait_for("HTTP/1.1 431 "));
  }
  CHECK(f.seen.empty());
}

TEST_CASE("what is not HTTP is refused with 400, and the server serves on") {
  Fixture f;
  for (const char* bad :
       {"hello\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    CAPTURE(bad);
    auto c = f.client();
    c.send(bad);
    CHECK(c.wait_for("HTTP/1.1 400 "));
    CHECK(c.wait_closed());
  }
  auto c = f.client();
  c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(f.arrived(1));
}

TEST_CASE("a client that leaves is noticed while it waits, and while it is streamed to") {
  Fixture f;
  for (const bool streaming : {false, true}) {
    CAPTURE(streaming);
    f.seen.clear();
    auto c = f.client();
    c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(f.arrived(1));
    const Exchange x = f.seen[0];
    bool told = false;
    x.on_gone([&] { told = true; });
    if (streaming) {
      x.start(200, "text/event-stream");
      x.write("data: 1\n\n");
      REQUIRE(c.wait_for("data: 1"));
    }
    CHECK(!x.gone());
    c.close();
    REQUIRE(wait_until(f.loop, [&] { return told; }));
    CHECK(x.gone());
    bool at_once = false;
    x.on_gone([&] { at_once = true; });
    CHECK(at_once);
    x.write("into the void");
    x.end();
    CHECK(f.server->open_exchanges() == 0);
  }
}

TEST_CASE("an exchange dropped unanswered answers 500; in mid-stream it cuts the connection") {
  Fixture f;
  auto c = f.client();
  c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.arrived(1));
  f.seen.clear();
  REQUIRE(c.wait_for("HTTP/1.1 500 "));
  c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.arrived(1));
  f.seen[0].start(200, "text/plain");
  f.seen[0].write("half");
  REQUIRE(c.wait_for("half"));
  f.seen.clear();
  CHECK(c.wait_closed());
  CHECK(c.received().find("\r\n0\r\n") == std::string::npos);
}

TEST_CASE("a slow reader shows in unsent(), and what it reads leaves it") {
  Fixture f;
  auto c = f.client();
  c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.arrived(1));
  const Exchange x = f.seen[0];
  x.start(200, "text/plain");
  for (int i = 0; i < 64; ++i) x.write(std::string(1 << 20, 'x'));
  CHECK(x.unsent() > 1 << 20);
  CHECK(wait_until(f.loop, [&] {
    c.got("never");
    return x.unsent() == 0;
  }));
}

TEST_CASE("more requests than the loop's queue holds are refused with 503") {
  ServerOptions options;
  options.queue_max = 2;
  Fixture f(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(f.client());
  for (auto& c : clients) c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  // The loop does not turn until some client has been refused.
  const Time end = f.clock.now() + 20s;
  size_t refused = 0;
  while (refused < 4 && f.clock.now() < end) {
    refused = 0;
    for (auto& c : clients) refused += c.got("HTTP/1.1 503 ");
  }
  CHECK(refused == 4);
  CHECK(f.arrived(2));
  for (const Exchange& x : f.seen) x.reply(200, "text/plain", "served");
  CHECK(wait_until(f.loop, [&] { return f.server->open_exchanges() == 0; }));
}

TEST_CASE("connections above the limit get an answer that says so") {
  ServerOptions options;
  options.connections_max = 1;
  Fixture f(options);
  auto first = f.client();
  first.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.arrived(1));
  auto second = f.client();
  second.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(second.wait_for("HTTP/1.1 503 "));
  f.seen[0].reply(200, "text/plain", "served");
  CHECK(first.wait_for("served"));
}

TEST_CASE(
    "a request that does not arrive in time is ended with 408, an idle connection is closed") {
  ServerOptions options;
  options.idle_timeout = 100ms;
  Fixture f(options);
  auto slow = f.client();
  slow.send("GET / HT");
  CHECK(slow.wait_for("HTTP/1.1 408 "));
  auto idle = f.client();
  CHECK(idle.wait_closed());
  CHECK(idle.received().empty());
}

TEST_CASE("a header that trickles in does not hold its connection beyond the timeout") {
  ServerOptions options;
  options.idle_timeout = 200ms;
  Fixture f(options);
  auto slow = f.client();
  const Time begin = f.clock.now();
  slow.send("GET / HTTP/1.1\r\nX: ");
  bool ended = false;  // a byte every few milliseconds: never idle
  while (!ended && f.clock.now() - begin < 20s) {
    f.loop.turn(5ms);
    ended = !slow.send("x") || slow.got("HTTP/1.1 408 ");
  }
  CHECK(ended);
  CHECK(f.clock.now() - begin >= 190ms);
  CHECK(f.seen.empty());
}

TEST_CASE("F9: a body that trickles in is refused after one timeout") {
  ServerOptions options;
  options.idle_timeout = 50ms;
  Fixture f(options);
  auto slow = f.client();
  const Time begin = f.clock.now();
  slow.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
  bool ended = false;
  while (!ended && f.clock.now() - begin < 20s) {
    f.loop.turn(5ms);
    ended = !slow.send("x") || slow.got("HTTP/1.1 408 ");
  }
  CHECK(ended);
  CHECK(f.seen.empty());
}

TEST_CASE("F10: empty lines before a request do not keep its connection") {
  ServerOptions options;
  options.idle_timeout = 200ms;
  Fixture f(options);
  auto c = f.client();
  SUBCASE("before the first request") {}
  SUBCASE("after an answer") {
    c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    REQUIRE(f.arrived(1));
    f.seen[0].reply(200, "text/plain", "first");
    REQUIRE(c.wait_for("first"));
  }
  const Time begin = f.clock.now();
  int sent = 0;
  bool closed = false;
  while (!closed && f.clock.now() - begin < 20s) {
    closed = wait_until(
        f.loop, [&] { return c.got("\x01 never") || c.closed(); }, 50ms);
    if (!closed && sent < 100) closed = !c.send("\r\n");
    ++sent;
  }
  CHECK(closed);
  CHECK(sent < 100);  // far from what the length of a header allows
}

TEST_CASE("F9: clients that never finish a request do not keep others out") {
  ServerOptions options;
  options.connections_max = 200;
  std::vector<Exchange> kept;
  Fixture f(options, [&](Exchange x) {
    if (x.request().path == "/kept") return kept.push_back(std::move(x));
    x.reply(200, "text/plain", "here: " + x.request().path);
  });
  auto early = f.client();
  early.send("GET /early HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(early.wait_for("here: /early"));
  std::vector<RawClient> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(f.client());
    CHECK(slow.back().send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n"));
  }
  auto late = f.client();
  late.send("GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(late.wait_for("here: /live"));
  late.send("POST /late HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx");
  CHECK(late.wait_for("here: /late"));
  early.send("GET /again HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(early.wait_for("here: /again"));  // it kept its slot
  CHECK(slow.front().wait_closed());      // the oldest gave way
  CHECK(slow.back().send("x"));
  CHECK(slow.back().wait_for("here: /"));
}

TEST_CASE("F9: /live is answered while every slot has a request") {
  ServerOptions options;
  options.connections_max = 2;
  std::vector<Exchange> kept;
  Fixture f(options, [&](Exchange x) {
    if (x.request().path == "/live") return x.reply(200, "text/plain", "alive");
    kept.push_back(std::move(x));
  });
  std::vector<RawClient> busy;
  for (int i = 0; i < 2; ++i) {
    busy.push_back(f.client());
    busy.back().send("GET /kept HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  REQUIRE(wait_until(f.loop, [&] { return kept.size() == 2; }));
  std::vector<RawClient> silent;  // more than there are slots for refusals
  for (int i = 0; i < 80; ++i) silent.push_back(f.client());
  auto other = f.client(), probe = f.client();
  other.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(other.wait_for("HTTP/1.1 503 "));
  probe.send("GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(probe.wait_for("alive"));
  CHECK(probe.wait_closed());  // its slot is for refusals
  for (const Exchange& x : kept) x.reply(200, "text/plain", "served");
  for (RawClient& c : busy) CHECK(c.wait_for("served"));
}

TEST_CASE("a client that takes no byte of a stream is closed after the timeout") {
  ServerOptions options;
  options.idle_timeout = 200ms;
  Fixture f(options);
  auto c = f.client();
  c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.arrived(1));
  const Exchange x = f.seen[0];
  bool told = false;
  x.on_gone([&] { told = true; });
  x.start(200, "text/event-stream");
  for (int i = 0; i < 64; ++i) x.write(std::string(1 << 20, 'x'));  // more than sockets hold
  CHECK(wait_until(f.loop, [&] { return told; }));
  CHECK(x.unsent() == 0);
}

TEST_CASE("the bodies of all requests together are bounded, until they are answered") {
  ServerOptions options;
  options.body_max = Bytes(2000);
  options.bodies_max = Bytes(3000);
  options.refusal = [](int status, const std::string& why, std::string_view) {
    return Page{"application/json", strf("{\"%d\":\"%s\"}", status, why.c_str())};
  };
  Fixture f(options);
  const std::string post = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000\r\n\r\n";
  auto first = f.client(), second = f.client();
  first.send(post + std::string(2000, 'a'));
  REQUIRE(f.arrived(1));
  second.send(post + std::string(2000, 'b'));
  REQUIRE(second.wait_for("HTTP/1.1 503 "));
  CHECK(second.wait_for("{\"503\":\"this server holds too many large requests already\"}"));
  CHECK(second.received().find("Content-Type: application/json\r\n") != std::string::npos);
  CHECK(second.received().find("Retry-After: 1\r\n") != std::string::npos);
  SUBCASE("answered") { f.seen[0].reply(200, "text/plain", "ok"); }
  SUBCASE("read, and not needed any more") {
    f.seen[0].forget_body();
    CHECK(f.seen[0].request().body.empty());
    f.seen[0].start(200, "text/plain");
    f.seen[0].write("ok");
  }
  REQUIRE(first.wait_for("ok"));
  auto third = f.client();
  third.send(post + std::string(2000, 'c'));
  REQUIRE(f.arrived(2));
  CHECK(f.seen[1].request().body.size() == 2000);
}

TEST_CASE("out of open files it lets clients wait, and serves them when there are some again") {
  Fixture f;
  RawClient client(f.loop, RawClient::kLater);
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit before = limit;
  const io::Fd highest(::dup(0));  // the lowest number that is free: nothing above it may open
  limit.rlim_cur = static_cast<rlim_t>(highest.get()) + 1;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  client.connect(f.server->address());
  CHECK(client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  const Time end = f.clock.now() + 300ms;  // in which it tries three times, not without end
  REQUIRE(wait_until(f.loop, [&] { return f.clock.now() > end; }));
  CHECK(f.seen.empty());
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(f.arrived(1));
  f.seen[0].reply(200, "text/plain", "late\n");
  CHECK(client.wait_for("late"));
}

TEST_CASE("a server that stops accepting finishes what it began") {
  Fixture f;
  auto busy = f.client(), idle = f.client();
  busy.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(f.arrived(1));
  f.server->stop_accepting();
  CHECK(idle.wait_closed());
  CHECK(f.server->open_exchanges() == 1);
  f.seen[0].reply(200, "text/plain", "done");
  CHECK(busy.wait_for("done"));
  CHECK(busy.wait_closed());
  CHECK(wait_until(f.loop, [&] { return f.server->open_exchanges() == 0; }));
}

TEST_CASE("a handler may destroy its server; exchanges may outlive it") {
  Fixture* fixture = nullptr;
  std::vector<Exchange> kept;
  Fixture f({}, [&](Exchange x) {
    kept.push_back(std::move(x));
    fixture->server.reset();
  });
  fixture = &f;
  auto c = f.client();
  c.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  REQUIRE(wait_until(f.loop, [&] { return !kept.empty(); }));
  kept[0].reply(200, "text/plain", "into the void");
  CHECK(kept[0].gone());
  CHECK(c.wait_closed());
}

TEST_CASE("an address in use and an address that is none are told apart") {
  Fixture f;
  auto twice = Server::open(f.loop, f.server->address(), {}, [](Exchange) {});
  REQUIRE(!twice);
  CHECK(twice.error().code == Code::kUnavailable);
  CHECK(twice.error().what.find(f.server->address()) != std::string::npos);
  auto none = Server::open(f.loop, "nonsense", {}, [](Exchange) {});
  REQUIRE(!none);
  CHECK(none.error().code == Code::kInvalid);
}

TEST_CASE("the pages of every daemon") {
  Metrics metrics;
  metrics.counter("mc_test_total", "tests").add(3);
  std::string not_ready;
  Fixture f({}, [&](Exchange x) {
    if (!serve_common(x, metrics, not_ready, "{\"state\":\"fine\"}"))
      x.reply(404, "text/plain", "no such page\n");
  });
  const auto get = [&](const std::string& path) {
    auto c = f.client();
    c.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    CHECK(c.wait_closed());
    return c.received();
  };
  CHECK(get("/live").starts_with("HTTP/1.1 200 "));
  CHECK(get("/ready").starts_with("HTTP/1.1 200 "));
  CHECK(get("/health").ends_with("{\"state\":\"fine\"}"));
  CHECK(get("/metrics").find("mc_test_total 3\n") != std::string::npos);
  CHECK(get("/metrics").find("Content-Type: text/plain; version=0.0.4\r\n") != std::string::npos);
  CHECK(get("/other").starts_with("HTTP/1.1 404 "));
  not_ready = "no \"decode\" node";
  CHECK(get("/ready").starts_with("HTTP/1.1 503 "));
  CHECK(get("/ready").ends_with("{\"ready\":false,\"reason\":\"no \\\"decode\\\" node\"}\n"));
  CHECK(get("/health").starts_with("HTTP/1.1 503 "));
  CHECK(get("/live").starts_with("HTTP/1.1 200 "));
}

}  // namespace server_test
