// Answers that have no body by their status.
#include <doctest/doctest.h>

#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;

TEST_CASE("an answer of status 204 has no body, and the next one is read after it") {
  SteadyClock clock;
  io::Loop loop(clock);
  std::vector<Exchange> seen;
  const auto server =
      Server::open(loop, "127.0.0.1:0", {}, [&](Exchange x) { seen.push_back(std::move(x)); });
  REQUIRE(server);
  http::testing::RawClient client(loop, (*server)->address());
  const auto arrived = [&](size_t n) {
    return http::testing::wait_until(loop, [&] { return seen.size() >= n; });
  };
  const std::string ask = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  client.send(ask + ask + ask);
  REQUIRE(arrived(1));
  seen[0].start(204, "");
  seen[0].write("nothing");
  seen[0].end();
  REQUIRE(arrived(2));
  seen[1].reply(204, "", "nothing");
  REQUIRE(arrived(3));
  seen[2].reply(200, "text/plain", "something");
  REQUIRE(client.wait_for("something"));
  const std::string all = client.received(), empty = all.substr(0, all.find("HTTP/1.1 200"));
  for (const char* said : {"Content-Length", "Transfer-Encoding", "nothing", "0\r\n\r\n"})
    CHECK(empty.find(said) == std::string::npos);
}
