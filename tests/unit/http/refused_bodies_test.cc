// The rest of a refused body: its client sees the answer.
#include <doctest/doctest.h>

#include "http/server.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;
using http::testing::RawClient;
using http::testing::wait_until;
using namespace std::chrono_literals;

namespace refused_bodies_test {

namespace {

struct Fixture {
  SteadyClock clock;
  io::Loop loop{clock};
  std::unique_ptr<Server> server;

  explicit Fixture(const ServerOptions& options) {
    auto opened = Server::open(loop, "127.0.0.1:0", options,
                               [](const Exchange& x) { x.reply(200, "text/plain", "hello\n"); });
    REQUIRE(opened);
    server = std::move(*opened);
  }
  RawClient client() { return RawClient(loop, server->address()); }
  // The server's thread has taken what was sent before.
  void pass() { CHECK(http::testing::ask_at(loop, server->address(), "/", "").status == 200); }
};

// A rest is dropped without limits of time.
ServerOptions patient() {
  ServerOptions options;
  options.body_max = Bytes(1000);
  options.rest_pause = options.rest_time = 1h;
  return options;
}

// A POST without its body.
std::string head(uint64_t length) {
  return "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(length) +
         "\r\n\r\n";
}

}  // namespace

TEST_CASE("who sends all of a refused body before a look at the answer gets it, not a reset") {
  ServerOptions options;
  options.body_max = Bytes(1000);
  Fixture f(options);
  auto c = f.client();
  const std::string body(31 << 20, 'x');
  CHECK(c.send(head(body.size())));
  CHECK(c.send(body));
  CHECK(c.wait_for("HTTP/1.1 413 "));
  CHECK(c.wait_closed());
}

TEST_CASE("a chunk that is larger than the rest of the limit is refused before it comes") {
  const std::string chunked =
      "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string half = "1f4\r\n" + std::string(500, 'x') + "\r\n";
  Fixture f(patient());
  for (const std::string& sent :
       {chunked + "3e9\r\n", chunked + half + "1f5\r\n", chunked + half + half + "1\r\n",
        chunked + half + "ffffffffffffffff\r\n"}) {
    CAPTURE(sent);
    auto c = f.client();
    c.send(sent);
    CHECK(c.wait_for("HTTP/1.1 413 "));
  }
  auto c = f.client();
  c.send(chunked + half + half + "0\r\n\r\n");
  CHECK(c.wait_for("HTTP/1.1 200 "));
}

TEST_CASE("the rest of a refused body is read within limits of time and of bytes") {
  ServerOptions options;
  options.body_max = Bytes(1000);
  std::string piece = "x";
  SUBCASE("of time, however steadily it comes") { options.rest_time = 50ms; }
  SUBCASE("of bytes") {
    options.rest_max = Bytes(1 << 20);
    piece.resize(65536);
  }
  Fixture f(options);
  auto c = f.client();
  c.send(head(99'999'999'999));
  REQUIRE(c.wait_for("HTTP/1.1 413 "));
  REQUIRE(c.wait_closed());  // for sending: it still reads
  CHECK(wait_until(f.loop, [&] { return !c.send(piece); }));
}

TEST_CASE("who sends a refused body slowly, and looks at the answer last, gets it too") {
  Fixture f(patient());
  auto c = f.client();
  constexpr int kPieces = 20;
  const std::string piece(1000, 'x');
  CHECK(c.send(head(kPieces * piece.size())));
  REQUIRE(wait_until(f.loop, [&] { return c.ended(); }));  // it waits for the rest alone
  for (int i = 0; i < kPieces; ++i) {
    CHECK(c.send(piece));
    f.pass();
  }
  CHECK(c.wait_for("HTTP/1.1 413 "));
  CHECK(c.wait_closed());
}

TEST_CASE("the rest of a refused body is read until a pause is too long") {
  ServerOptions options = patient();
  options.rest_pause = 50ms;
  Fixture f(options);
  auto c = f.client();
  c.send(head(99'999'999'999));
  REQUIRE(c.wait_closed());
  Duration pause = 1ms;  // the next is twice as long
  Time next = f.clock.now();
  CHECK(wait_until(f.loop, [&] {
    if (f.clock.now() < next) return false;
    next = f.clock.now() + (pause *= 2);
    return !c.send("x");
  }));
}

TEST_CASE("only connections with a rest to read outlive their last answer") {
  ServerOptions options = patient();
  options.header_max = Bytes(1000);
  std::string request;
  bool outlives = false;
  SUBCASE("not one whose client wants it closed") {
    request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  }
  SUBCASE("not one of HTTP/1.0") { request = "GET / HTTP/1.0\r\n\r\n"; }
  SUBCASE("not one whose body was read") {
    request = "POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc";
  }
  SUBCASE("not one that is refused and has no body") {
    request = "GET / HTTP/1.1\r\nHost: a.page.elsewhere\r\n\r\n";
  }
  SUBCASE("not one whose refused body has come") { request = head(2000) + std::string(2000, 'x'); }
  SUBCASE("one whose refused body has not come") { request = head(2000), outlives = true; }
  SUBCASE("one whose refused body has no known end") {
    request = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n7d1\r\n" +
              std::string(2001, 'x');
    outlives = true;
  }
  SUBCASE("one whose client sent more") {
    request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\nGET / HT";
    outlives = true;
  }
  SUBCASE("one whose head is too long") {
    request = "GET / HTTP/1.1\r\nA: " + std::string(2000, 'x'), outlives = true;
  }
  Fixture f(options);
  auto c = f.client();
  CHECK(c.send(request));
  CHECK(c.wait_for("HTTP/1.1 "));
  CHECK(c.wait_closed());
  if (!outlives) CHECK(wait_until(f.loop, [&] { return !c.send("x"); }));
  for (int i = 0; outlives && i < 5; ++i) {
    f.pass();
    CHECK(c.send("x"));
  }
}

TEST_CASE("of many clients with a rest to send, the oldest gives way") {
  ServerOptions options = patient();
  options.lingering_max = 2;
  Fixture f(options);
  auto a = f.client(), b = f.client(), c = f.client();
  for (RawClient* const client : {&a, &b, &c}) {
    CHECK(client->send(head(99'999'999'999)));
    CHECK(client->wait_closed());
  }
  CHECK(wait_until(f.loop, [&] { return !a.send("x"); }));
  for (int i = 0; i < 5; ++i) {
    f.pass();
    CHECK(b.send("x"));
    CHECK(c.send("x"));
  }
}

}  // namespace refused_bodies_test
