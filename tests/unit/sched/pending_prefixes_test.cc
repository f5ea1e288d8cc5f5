// Prefixes under computation are found by prompts that begin like them, and end with their request.
#include "sched/index/pending_prefixes.h"

#include <doctest/doctest.h>

#include "base/random.h"
#include "request_site.h"

using namespace mc;
using namespace mc::sched;
using namespace mc::sched::test;

namespace pending_prefixes_test {
namespace {

std::vector<uint64_t> tags_of(uint64_t prompt, size_t blocks) {
  std::vector<uint64_t> tags;
  for (size_t i = 0; i < blocks; ++i) tags.push_back(1000 * prompt + i);
  return tags;
}

// Prefill workers p0, p1, ... that have nothing, and one decode worker.
struct Burst : RequestSite {
  explicit Burst(size_t prefills, uint64_t blocks = 1 << 20) : RequestSite({}, {}, 1 << 16) {
    for (size_t i = 0; i < prefills; ++i) join("p" + std::to_string(i), true, blocks);
    for (size_t i = 0; i < std::max<size_t>(1, prefills / 2); ++i)
      join("d" + std::to_string(i), false, blocks);
  }
  const Decision& decision(uint64_t request) {
    for (const RequestAction& a : out)
      if (const auto* made = std::get_if<DecisionMade>(&a); made && made->of.request == request)
        decisions[request] = made->choice.decision;
    return decisions.at(request);
  }
  // It is computed there, and delivered.
  void compute(uint64_t request) {
    answer(attempt(request), Step::kReserve);
    if (!decision(request).chosen.peer.empty()) answer(attempt(request), Step::kPin);
    answer(attempt(request), Step::kAllocate);
    answer(attempt(request), Step::kPrefill);
  }
  std::map<uint64_t, Decision> decisions;
};

}  // namespace

TEST_CASE(
    "a prompt finds the longest prefix of each node that computes one, and when it is ready") {
  PendingPrefixes pending;
  const Time now{1s};
  pending.begin(1, "a", tags_of(7, 10), 0, now, 50ms);
  pending.begin(2, "b", tags_of(7, 4), 2, now, 20ms);
  pending.begin(3, "a", tags_of(8, 10), 0, now, 5ms);
  auto found = pending.find(tags_of(7, 6));
  REQUIRE(found.size() == 2);
  CHECK(found[0].node == "a");
  CHECK(found[0].first == 0);
  CHECK(found[0].last == 6);
  CHECK(found[0].ready == now + 50ms);
  CHECK(found[1].node == "b");
  CHECK(found[1].last == 4);
  CHECK(found[1].ready == now + 20ms);
  CHECK(pending.find(tags_of(9, 6)).empty());
  CHECK(pending.find({}).empty());

  pending.delay(1, now + 100ms);
  CHECK(pending.find(tags_of(7, 6))[0].ready == now + 150ms);
  pending.end(1);
  pending.end(1);
  found = pending.find(tags_of(7, 6));
  REQUIRE(found.size() == 1);
  CHECK(found[0].node == "b");
  pending.end(2);
  pending.end(3);
  CHECK(pending.size() == 0);
}

TEST_CASE("prompts that part are found up to there") {
  PendingPrefixes pending;
  Random random(3);
  const auto base = tags_of(1, 100);
  pending.begin(1, "a", base, 0, Time{}, 1ms);
  for (int i = 0; i < 100; ++i) {
    auto other = base;
    const size_t common = 1 + random.below(99);
    for (size_t at = common; at < other.size(); ++at) other[at] += 5000;
    const auto found = pending.find(other);
    REQUIRE(found.size() == 1);
    CHECK(found[0].last == common);
  }
}

TEST_CASE("F77: ten equal prompts at once: one computes, the others wait for it") {
  for (const size_t prefills : {1u, 3u, 80u}) {  // few are all compared, of many a shortlist
    CAPTURE(prefills);
    Burst s(prefills);
    std::vector<uint64_t> ids;
    for (int i = 0; i < 10; ++i) ids.push_back(s.arrive(16 * 1000, 0, 8, 0, 5));
    CHECK(s.decision(ids[0]).chosen.reused_tokens == 0);
    for (size_t i = 1; i < ids.size(); ++i) {
      const Decision& d = s.decision(ids[i]);
      CAPTURE(explain(d));
      CHECK(d.chosen.reused_tokens == 16 * 999);  // the last block is computed
      CHECK(d.chosen.pending_tokens == 16 * 999);
      CHECK(d.chosen.wait_ms > 0);
      CHECK(d.ttft_ms() >= d.chosen.wait_ms);
      CHECK(explain(d).find("not computed yet") != std::string::npos);
    }
    for (const uint64_t id : ids) s.compute(id);
    CHECK(s.machine.broken() == "");
    s.out.clear();
    const uint64_t late = s.arrive(16 * 1000, 0, 8, 0, 5);
    CHECK(s.decision(late).chosen.pending_tokens == 0);  // it is there
    CHECK(s.decision(late).chosen.reused_tokens == 16 * 999);
  }
}

TEST_CASE("F77: another worker reads a prefix as it appears, when the first one is busy") {
  Burst s(2);
  const uint64_t first = s.arrive(16 * 4000, 0, 8, 0, 5);
  const std::string computes = s.decision(first).chosen.name;
  s.workers[computes]->ledger.tell_others(60'000, s.now);  // behind that one, for all it knows
  const uint64_t second = s.arrive(16 * 4000, 0, 8, 0, 5);
  const Decision& d = s.decision(second);
  CAPTURE(explain(d));
  CHECK(d.chosen.name != computes);
  CHECK(d.chosen.peer == computes);
  CHECK(d.chosen.peer_tokens == 16 * 3999);
  CHECK(d.chosen.wait_ms > 0);
  CHECK(d.reason.find("as it appears") != std::string::npos);
  const auto pins = s.sent(Step::kPin);
  REQUIRE(pins.size() == 1);
  CHECK(pins[0].to.node == computes);
  CHECK(pins[0].coming == 16 * 3999);
  CHECK(pins[0].patience > from_seconds(d.chosen.wait_ms / 1e3));
}

namespace {

// One request computes a prefix on one worker, another one fetches it to the second, where a third
// waits for it.
struct Followed : Burst {
  Followed() : Burst(2) {
    const std::string computes = decision(arrive(16 * 4000, 0, 8, 0, 5)).chosen.name;
    workers[computes]->ledger.tell_others(60'000, now);
    fetches = arrive(16 * 4000, 0, 8, 0, 5);
    REQUIRE(decision(fetches).chosen.peer == computes);
    follows = arrive(16 * 4000, 0, 8, 0, 5);
    REQUIRE(decision(follows).chosen.name == decision(fetches).chosen.name);
    REQUIRE(decision(follows).chosen.peer.empty());
    REQUIRE(decision(follows).chosen.pending_tokens == 16 * 3999);
    answer(attempt(follows), Step::kReserve);
    CHECK(state(follows) == RequestState::kReserving);
    CHECK(sent(Step::kAllocate).empty());
  }
  // The requests whose prefill worker was asked, in that order.
  std::vector<uint64_t> asked() const {
    std::vector<uint64_t> ids;
    for (const SendStep& s : sent(Step::kAllocate)) ids.push_back(s.of.request);
    return ids;
  }
  uint64_t fetches = 0, follows = 0;
};

}  // namespace

TEST_CASE("who waits for a prefix that another one fetches comes behind that one") {
  Followed s;
  SUBCASE("pinned last") {
    s.answer(s.attempt(s.fetches), Step::kReserve);
    CHECK(s.asked().empty());
    s.answer(s.attempt(s.fetches), Step::kPin);
  }
  SUBCASE("reserved last") {
    s.answer(s.attempt(s.fetches), Step::kPin);
    CHECK(s.asked().empty());
    s.answer(s.attempt(s.fetches), Step::kReserve);
  }
  SUBCASE("a pin that is refused ends the wait of both") {
    s.answer(s.attempt(s.fetches), Step::kReserve);
    s.answer(s.attempt(s.fetches), Step::kPin, fail(Code::kBusy, "many pins"));
  }
  CHECK(s.asked() == std::vector<uint64_t>{s.fetches, s.follows});
  CHECK(s.state(s.follows) == RequestState::kAllocating);
}

TEST_CASE("who waits for a prefix that is not fetched after all goes on") {
  Followed s;
  SUBCASE("its request is given up") { s.handle(RequestCancelled{s.fetches, "the client left"}); }
  SUBCASE("its decode worker has no room") {
    s.answer(s.attempt(s.fetches), Step::kReserve, fail(Code::kNoSpace, "no blocks"));
  }
  SUBCASE("its workers do not answer") {
    s.tick(s.options.pin_timeout + s.options.slack);
    CHECK(s.state(s.fetches) == RequestState::kReserving);
  }
  CHECK(s.asked() == std::vector<uint64_t>{s.follows});
}

TEST_CASE("one that is given up while it waits for another one's fetch goes nowhere") {
  Followed s;
  s.handle(RequestCancelled{s.follows, "the client left"});
  s.answer(s.attempt(s.fetches), Step::kReserve);
  s.answer(s.attempt(s.fetches), Step::kPin);
  CHECK(s.asked() == std::vector<uint64_t>{s.fetches});
}

TEST_CASE("a prefix under computation is computed again where waiting for it takes much longer") {
  Burst s(2);
  // The only one that computes this prefix does so behind a long queue.
  s.workers["p0"]->ledger.tell_others(60'000, s.now);
  s.workers["p1"]->draining = true;
  const uint64_t first = s.arrive(16 * 1000, 0, 8, 0, 5);
  CHECK(s.decision(first).chosen.name == "p0");
  s.workers["p1"]->draining = false;
  const uint64_t second = s.arrive(16 * 1000, 0, 8, 0, 5);
  const Decision& d = s.decision(second);
  CAPTURE(explain(d));
  CHECK(d.chosen.name == "p1");
  CHECK(d.chosen.reused_tokens == 0);
  CHECK(d.chosen.again_ms > 0);
}

TEST_CASE("among many workers the same is decided as by a look at each, whatever is computed") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Burst s(80);
    for (auto& [node, w] : s.workers) w->pipeline.chunk_tokens = seed % 2 == 0 ? 1024 : 0;
    s.cost.learn_fetch(uint64_t{1} << 30, seed < 3 ? 10 : 500);
    std::vector<uint64_t> running;
    size_t waited = 0;
    for (int i = 0; i < 300; ++i) {
      CAPTURE(i);
      s.now += Duration(random.below(8'000'000));
      const uint64_t prompt = 1 + random.below(6), tokens = 16 * (100 + random.below(900));
      RequestAsk ask;
      ask.tokens = ask.prompt_tokens = tokens;
      ask.max_tokens = 8;
      const auto tags = tags_of(prompt, tokens / 16);
      s.cost.advance(s.now);
      const Decision whole =
          s.fleet.decide(s.fleet.view(ask, tags, nullptr, s.now), ask, s.now, s.now);
      const uint64_t id = s.arrive(tokens, 0, 8, 0, prompt);
      const Decision& d = s.decision(id);
      CAPTURE(explain(d));
      CAPTURE(explain(whole));
      CHECK(d.chosen.name == whole.chosen.name);
      CHECK(d.chosen.peer == whole.chosen.peer);
      CHECK(d.ttft_ms() == whole.ttft_ms());
      CHECK(d.reason == whole.reason);
      waited += d.chosen.pending_tokens > 0 ? 1 : 0;
      s.out.clear();
      running.push_back(id);
      if (random.chance(0.3)) {
        FleetWorker& w = *s.roster.find("p" + std::to_string(random.below(80)));
        const double times = 1 + 4 * random.uniform();
        if (random.chance(0.3)) w.congestion.learn(10, 10 * times, s.now);
        if (random.chance(0.5))
          w.fetches.learn("p" + std::to_string(random.below(80)), 10, 10 * times, s.now);
        if (random.chance(0.3)) w.ledger.correct(0, 20 * random.uniform(), s.now);
      }
      if (random.chance(0.6)) {
        const auto at = running.begin() + static_cast<std::ptrdiff_t>(random.below(running.size()));
        s.handle(RequestCancelled{*at, "the client left"});
        running.erase(at);
      }
    }
    CHECK(waited > 30);
  }
}

TEST_CASE("a prefix whose request is given up is awaited no more") {
  Burst s(1);
  const uint64_t first = s.arrive(16 * 1000, 0, 8, 0, 5);
  s.handle(RequestCancelled{first, "the client left"});
  const Decision& d = s.decision(s.arrive(16 * 1000, 0, 8, 0, 5));
  CHECK(d.chosen.pending_tokens == 0);
  CHECK(d.chosen.reused_tokens == 0);
}

}  // namespace pending_prefixes_test
