// What clients leave unread.
#include <doctest/doctest.h>

#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;

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
