// Bodies of requests that are held for long: what they take and what they count for.
#include <doctest/doctest.h>
#include <malloc.h>

#include "http/client.h"
#include "tests/unit/http/raw.h"

using namespace mc;
using namespace mc::http;
using http::testing::RawClient;
using http::testing::wait_until;

namespace held_bodies_test {
namespace {

struct Fixture {
  explicit Fixture(ServerOptions options = {})
      : server(*Server::open(loop, "127.0.0.1:0", std::move(options),
                             [this](Exchange x) { seen.push_back(std::move(x)); })) {}
  bool arrived(size_t n) {
    return wait_until(loop, [&] { return seen.size() >= n; });
  }
  SteadyClock clock;
  io::Loop loop{clock};
  std::vector<Exchange> seen;
  std::unique_ptr<Server> server;
  Client client{loop};
};

}  // namespace

TEST_CASE("a body that was handed over counts as long as its token lives") {
  ServerOptions options;
  options.bodies_max = Bytes(3000);
  Fixture f(std::move(options));
  const std::string post =
      "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000\r\n\r\n" + std::string(2000, 'a');
  RawClient first(f.loop, f.server->address()), second(f.loop, f.server->address());
  first.send(post);
  REQUIRE(f.arrived(1));
  auto token = f.seen[0].hand_over_body();
  CHECK(f.seen[0].request().body.empty());
  f.seen[0].reply(200, "text/plain", "ok");
  REQUIRE(first.wait_for("ok"));
  second.send(post);
  REQUIRE(second.wait_for("HTTP/1.1 503 "));
  token.reset();
  first.send(post);
  CHECK(f.arrived(2));
}

TEST_CASE("a client holds the body of its request no longer than to its answer's begin") {
  Fixture f;
  constexpr size_t kSize = 30 * kMiB;
  const auto taken = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const size_t before = taken();
  ClientRequest r;
  r.method = "POST";
  r.url = "http://" + f.server->address() + "/";
  r.body = std::string(kSize, 'x');
  size_t came = 0;
  ClientCallbacks calls;
  calls.on_chunk = [&](std::string_view chunk, Time) { came += chunk.size(); };
  calls.on_done = [](const Result<ClientResponse>&) {};
  f.client.send(std::move(r), std::move(calls));
  REQUIRE(f.arrived(1));
  CHECK(f.seen[0].request().body.size() == kSize);
  f.seen[0].forget_body();
  f.seen[0].start(200, "text/plain");
  f.seen[0].write("x");
  REQUIRE(wait_until(f.loop, [&] { return came == 1; }));
  const size_t after = taken();
  if (after > before) CHECK(after - before < kSize / 2);  // a sanitizer's says nothing
}

}  // namespace held_bodies_test
