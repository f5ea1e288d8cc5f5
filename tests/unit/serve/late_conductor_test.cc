// F5: a conductor that is late loses no stream.
#include "conductor_fakes.h"
#include "pair.h"

using namespace mc;
using namespace mc::serve;
using namespace mc::serve::test;

namespace {

using LateTokens = std::vector<int32_t>;

struct Streaming : Cluster {  // a request that waits for its tokens
  explicit Streaming(ConductorOptions options = patient()) : Cluster(1, 1, options) {
    p[0]->then = nullptr;
    submit(heard);
    REQUIRE(until(loop, [&] { return !p[0]->prefills.empty(); }));
  }
  Result<rpc::Empty> send(uint32_t first, const LateTokens& tokens,
                          const std::string& finish = "") {
    TokenUpdate u;
    u.request = p[0]->prefills[0];
    u.tokens = tokens;
    u.finish = finish;
    u.first = first;
    std::optional<Result<rpc::Empty>> answer;
    d[0]->client->call(TokenBatch{"d0", {u}}, 20s,
                       [&](const Result<rpc::Empty>& r) { answer = r; });
    REQUIRE(until(loop, [&] { return answer.has_value(); }));
    return *answer;
  }
  Heard heard;
};

}  // namespace

TEST_CASE("a conductor takes tokens that come twice once, and refuses those after a gap") {
  Streaming s;
  CHECK(s.send(1, {65}).has_value());
  CHECK(s.send(1, {65}).has_value());
  CHECK(s.heard.tokens == LateTokens{65});
  CHECK(s.send(1, {65, 66}).has_value());
  CHECK(s.heard.tokens == LateTokens{65, 66});
  const auto gap = s.send(4, {68}, "length");
  REQUIRE_FALSE(gap.has_value());
  CHECK(gap.error().code == Code::kStale);
  CHECK_FALSE(s.heard.done);
  CHECK(s.send(0, {67}).has_value());  // a worker of before
  CHECK(s.send(3, {67, 68}, "length").has_value());
  REQUIRE(s.finish(s.heard));
  CHECK(s.heard.tokens == LateTokens{65, 66, 67, 68});
  CHECK_FALSE(s.heard.failed.has_value());
  CHECK(s.send(3, {67, 68}, "length").has_value());  // it is over: nobody minds
}

TEST_CASE("a conductor that stood still gives its streams the time back, and keeps its workers") {
  Streaming s;
  CHECK(s.send(1, {65}).has_value());
  s.clock.jumped += 1h;
  for (int i = 0; i < 3; ++i) REQUIRE(s.loop.turn(5ms));
  CHECK_FALSE(s.heard.done);
  CHECK(s.conductor->not_ready() == "");
  CHECK(s.send(2, {66, 67, 68}, "length").has_value());
  REQUIRE(s.finish(s.heard));
  CHECK_FALSE(s.heard.failed.has_value());
  CHECK(s.heard.tokens == LateTokens{65, 66, 67, 68});
}

TEST_CASE("a conductor that stood still while a worker answered takes the answer") {
  Cluster c;
  Heard heard;
  c.submit(heard);
  c.clock.jumped += 1h;  // the worker's answer to Reserve comes after that
  REQUIRE(c.finish(heard));
  CHECK_FALSE(heard.failed.has_value());
  CHECK(c.d[0]->reserved.size() == 1);  // not tried again
}

TEST_CASE("a decode worker sends tokens again until its conductor takes them") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair quiet(loop);
  const auto prompt = prompt_of(40, 5);
  quiet.serve("r", prompt, 8);
  Pair pair(loop, {}, "-lossy");
  pair.unheard = 4;
  pair.serve("r", prompt, 8);
  CHECK(pair.repeated > 0);
  CHECK(pair.answers["r"].tokens == quiet.answers["r"].tokens);
  CHECK(pair.until([&] { return pair.decode->idle(); }));
  CHECK(pair.unheard == 0);
}

TEST_CASE("requests of a conductor that takes nothing end after its time") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  pair.unheard = 1 << 30;
  const auto target = pair.reserve("r", prompt_of(40, 5), 8);
  REQUIRE(target.has_value());
  const auto tx = pair.allocate("r", prompt_of(40, 5), *target);
  REQUIRE(tx.has_value());
  REQUIRE(pair.call(*pair.to_p, Prefill{tx->tx}, 20s).has_value());
  CHECK_FALSE(pair.decode->idle());
  CHECK(pair.until([&] { return pair.decode->idle(); }));
  CHECK(pair.decode->load().blocks_free == pair.decode->load().blocks_total);
}
