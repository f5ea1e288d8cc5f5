// Clients of HTTP/1.0.
#include <doctest/doctest.h>

#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;

namespace http10_test {

namespace {

struct Fixture {
  SteadyClock clock;
  io::Loop loop{clock};
  std::vector<Exchange> seen;
  std::unique_ptr<Server> server;

  Fixture() {
    auto opened =
        Server::open(loop, "127.0.0.1:0", {}, [this](Exchange x) { seen.push_back(std::move(x)); });
    REQUIRE(opened);
    server = std::move(*opened);
  }
  http::testing::RawClient client() { return {loop, server->address()}; }
  bool arrived(size_t n) {
    return http::testing::wait_until(loop, [&] { return seen.size() >= n; });
  }
};

}  // namespace

TEST_CASE("an HTTP/1.0 client gets a stream without chunks, ended by the connection's end") {
  Fixture f;
  auto c = f.client();
  SUBCASE("that asks for no more") { c.send("GET / HTTP/1.0\r\n\r\n"); }
  SUBCASE("that would ask for more, as it may behind an answer whose length it knows") {
    c.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    REQUIRE(f.arrived(1));
    f.seen[0].reply(200, "text/plain", "one\n");
    REQUIRE(c.wait_for("\r\n\r\none\n"));
    CHECK(c.received().find("Connection: keep-alive\r\n") != std::string::npos);
    f.seen.clear();
    c.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  }
  REQUIRE(f.arrived(1));
  f.seen[0].start(200, "text/plain");
  f.seen[0].write("all");
  f.seen[0].end();
  REQUIRE(c.wait_closed());
  CHECK(c.received().find("Connection: close\r\n") != std::string::npos);
  CHECK(c.received().find("chunked") == std::string::npos);
  CHECK(c.received().ends_with("\r\n\r\nall"));
}

TEST_CASE("an HTTP/1.0 client that expects 100 Continue gets none, as HTTP/1.0 has none") {
  Fixture f;
  auto c = f.client();
  c.send("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx");
  REQUIRE(f.arrived(1));
  f.seen[0].reply(200, "text/plain", "ok\n");
  REQUIRE(c.wait_closed());
  CHECK(c.received().starts_with("HTTP/1.1 200 "));
}

}  // namespace http10_test
