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
    auto opened = Server::open(loop, "127.0.0.1:0", options, [](const Exchange&) {});
    REQUIRE(opened);
    server = std::move(*opened);
  }
  RawClient client() { return RawClient(loop, server->address()); }
};

}  // namespace

TEST_CASE("who sends all of a refused body before a look at the answer gets it, not a reset") {
  ServerOptions options;
  options.body_max = Bytes(1000);
  Fixture f(options);
  auto c = f.client();
  const std::string body(31 << 20, 'x');
  CHECK(c.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n"));
  CHECK(c.send(body));
  CHECK(c.wait_for("HTTP/1.1 413 "));
  CHECK(c.wait_closed());
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
  c.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
  REQUIRE(c.wait_for("HTTP/1.1 413 "));
  REQUIRE(c.wait_closed());  // for sending: it still reads
  CHECK(wait_until(f.loop, [&] { return !c.send(piece); }));
}

}  // namespace refused_bodies_test
