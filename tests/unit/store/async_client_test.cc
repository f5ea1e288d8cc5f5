// Which of the waiting store calls runs next. The test is the master.
#include "store/client/async_client.h"

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <set>
#include <vector>

#include "rpc/server.h"
#include "store/protocol/messages.h"
#include "tests/slow.h"

namespace mc::store {
namespace {

using namespace std::chrono_literals;

TEST_CASE("F61: hints to prefetch leave a thread to other calls, and run after them") {
  SteadyClock clock;
  io::Loop loop(clock);
  Metrics metrics;
  auto server = std::move(*rpc::Server::open(loop, "127.0.0.1:0", metrics));
  std::vector<rpc::Reply<Replicas>> held;
  std::vector<size_t> asked;  // keys of each hint
  server->on_later<GetReplicas>(
      [&](const GetReplicas& m, const rpc::Call&, const rpc::Reply<Replicas>& reply) {
        asked.push_back(m.keys.size());
        held.push_back(reply);
      });
  server->on<MatchPrefix>([&](const MatchPrefix& m, const rpc::Call&) -> Result<Matched> {
    return Matched{0, m.keys.size()};
  });
  auto engine = std::move(*xfer::Engine::open(clock, {}, metrics));
  ClientOptions options;
  options.master = server->address();
  options.timeout = 20s * kSlow;
  auto client = std::move(*AsyncClient::open(loop, *engine, options, metrics, 3));
  const auto until = [&](const std::function<bool()>& done) {
    const Time end = clock.now() + 20s * kSlow;
    while (!done() && clock.now() < end) REQUIRE(loop.turn(10ms));
    return done();
  };
  constexpr size_t kHints = 100;
  size_t hinted = 0;
  for (size_t i = 0; i < kHints; ++i)
    client->prefetch(std::vector<ObjectKey>(i + 1, "a"), [&](Result<uint64_t>) { ++hinted; });
  REQUIRE(until([&] { return held.size() == 2; }));
  size_t matched = 0;
  for (int i = 0; i < 10; ++i)
    client->match_prefix({"a", "b"}, [&](Result<uint64_t> hits) {
      REQUIRE_MESSAGE(hits, hits.error().what);
      matched += *hits;
    });
  CHECK(until([&] { return matched == 20; }));
  // No answer to a hint was needed for that. A client asks a silent master again.
  CHECK(std::set(asked.begin(), asked.end()).size() == 2);
  CHECK(hinted == 0);
  CHECK(until([&, answered = size_t{0}]() mutable {
    for (; answered < held.size(); ++answered) {
      Replicas none;
      none.items.resize(asked[answered]);
      held[answered](none);
    }
    return hinted == kHints;
  }));
}

}  // namespace
}  // namespace mc::store
