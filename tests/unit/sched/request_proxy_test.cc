// Requests on external engines.
#include "request_site.h"
#include "sched/request/request_machine.h"

using namespace mc;
using namespace mc::sched;
using namespace mc::sched::test;

namespace request_proxy_test {
namespace {

UpstreamEnded ends(const AttemptRef& of, int status) {
  UpstreamEnded e{.of = of};
  e.status = status;
  e.output_tokens = 3;
  return e;
}

}  // namespace

TEST_CASE("an engine's answer is passed as it comes, and ends the request") {
  RequestSite s;
  s.engines.ups["e0"] = true;
  const uint64_t r = s.arrive();
  CHECK(s.state(r) == RequestState::kProxied);
  const AttemptRef a = s.attempt(r);
  s.handle(UpstreamData{a, 1});
  s.handle(UpstreamData{a, 2});
  CHECK(s.all<DeliverBytes>().size() == 2);
  s.handle(ends(a, 200));
  REQUIRE(s.finished(r) != nullptr);
  CHECK(!s.finished(r)->error);
  CHECK(s.finished(r)->status == 200);
  CHECK(s.finished(r)->progress.output_tokens == 3);
  CHECK(s.all<StopProxy>().empty());
  s.check_clean();
}

TEST_CASE("an engine that is full: another; when all are, its own words") {
  RequestSite s;
  s.engines.ups["e0"] = s.engines.ups["e1"] = true;
  const uint64_t r = s.arrive();
  s.handle(ends(s.attempt(r), 429));
  REQUIRE(s.finished(r) == nullptr);
  CHECK(s.all<ProxyTo>()[1].pair.engine != s.all<ProxyTo>()[0].pair.engine);
  s.handle(ends(s.attempt(r), 429));
  REQUIRE(s.finished(r) != nullptr);
  CHECK(s.finished(r)->status == 429);
  REQUIRE(s.all<PassOn>().size() == 1);
  CHECK(s.all<PassOn>()[0].turned_away);
  s.check_clean();
}

TEST_CASE(
    "an engine that fails before its first byte is tried no more, after it ends the request") {
  RequestSite s;
  s.engines.ups["e0"] = s.engines.ups["e1"] = true;
  const uint64_t r = s.arrive();
  s.handle(ends(s.attempt(r), 500));
  const AttemptRef second = s.attempt(r);
  CHECK(s.all<ProxyTo>()[1].pair.engine != s.all<ProxyTo>()[0].pair.engine);
  s.handle(UpstreamData{second, 1});
  s.tick(s.options.token_timeout);
  REQUIRE(s.finished(r) != nullptr);
  CHECK(s.finished(r)->error->status == 504);
  CHECK(s.all<StopProxy>().size() == 2);
  CHECK(s.all<EngineAnswered>().size() == 2);
  s.check_clean();
}

TEST_CASE("an answer that is no stream may take --answer-timeout, and nobody else computes it") {
  RequestSite s;
  s.engines.ups["e0"] = s.engines.ups["e1"] = true;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.attempt(r);
  const std::string engine = s.all<ProxyTo>()[0].pair.engine;
  s.tick(s.options.prefill_timeout);
  CHECK(s.all<TriedAgain>().empty());
  SUBCASE("it comes") {
    s.tick(s.options.answer_timeout - s.options.prefill_timeout - 1ms);
    s.handle(UpstreamData{a, 1});
    s.handle(ends(a, 200));
    CHECK(!s.finished(r)->error);
  }
  SUBCASE("it does not: nobody else computes it, and the engine has not failed") {
    for (int i = 0; i < 4; ++i) s.tick(s.options.prefill_timeout);
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->status == 504);
    CHECK(s.finished(r)->error->what.find("--answer-timeout") != std::string::npos);
    CHECK(s.all<ProxyTo>().size() == 1);
    CHECK(s.all<StopProxy>().size() == 1);
    CHECK(s.all<EngineAnswered>().empty());
  }
  SUBCASE("time in which this process stood still does not count") {
    s.now += 1h;
    s.handle(ClockStoodStill{1h});
    s.tick(s.options.prefill_timeout);
    CHECK(s.finished(r) == nullptr);
    s.handle(RequestCancelled{r, ""});
  }
  SUBCASE("an engine that is down does not answer any more") {
    s.engines.ups[engine] = false;
    s.tick(s.options.prefill_timeout);
    CHECK(s.all<TriedAgain>().size() == 1);
    CHECK(s.all<ProxyTo>().back().pair.engine != engine);
    s.handle(RequestCancelled{r, ""});
  }
  s.check_clean();
}

TEST_CASE("a refusal that has begun to pass is no first token, and goes to nobody else") {
  RequestSite s;
  s.engines.ups["e0"] = s.engines.ups["e1"] = true;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.attempt(r);
  s.handle(UpstreamData{.of = a, .good = false});
  CHECK(s.all<DeliverBytes>().size() == 1);
  for (const Measured& m : s.all<Measured>()) CHECK(m.what != Measure::kTtft);
  SUBCASE("whole") {
    s.handle(ends(a, 400));
    CHECK(s.all<PassOn>().empty());
    REQUIRE(s.finished(r) != nullptr);
    CHECK(!s.finished(r)->error);
    CHECK(s.finished(r)->status == 400);
    CHECK(s.finished(r)->progress.output_tokens == 0);
  }
  SUBCASE("cut") {
    UpstreamEnded cut = ends(a, 400);
    cut.outcome = fail(Code::kCorrupt, "cut off");
    s.handle(cut);
    CHECK(s.all<ProxyTo>().size() == 1);
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error);
  }
  s.check_clean();
}

TEST_CASE("an engine whose answer is held for the client is not late, and has not failed") {
  RequestSite s;
  s.engines.ups["e0"] = s.engines.ups["e1"] = true;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.attempt(r);
  s.handle(UpstreamHeld{a, true});  // nothing of it came
  s.handle(UpstreamData{a, 1});
  s.handle(UpstreamHeld{a, true});
  s.handle(UpstreamData{a, 1});  // was on its way
  for (int i = 0; i < 4; ++i) s.tick(s.options.token_timeout);
  CHECK(s.finished(r) == nullptr);
  s.handle(UpstreamHeld{a, false});
  s.tick(s.options.token_timeout - 1ms);
  CHECK(s.finished(r) == nullptr);
  UpstreamEnded cut = ends(a, 200);
  cut.outcome = fail(Code::kCorrupt, "cut off");
  SUBCASE("it goes on") {
    s.handle(UpstreamData{a, 1});
    s.tick(s.options.token_timeout - 1ms);
    s.handle(ends(a, 200));
    REQUIRE(s.finished(r) != nullptr);
    CHECK(!s.finished(r)->error);
  }
  SUBCASE("it is silent then, and has failed") {
    s.tick(1ms);
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->status == 504);
    REQUIRE(s.all<EngineAnswered>().size() == 1);
    CHECK(!s.all<EngineAnswered>()[0].well);
  }
  SUBCASE("it cuts the answer long after that, and has failed") {
    s.handle(cut);
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->status == 503);
    CHECK(s.all<EngineAnswered>().size() == 1);
  }
  SUBCASE("it ended a connection that nobody read") {
    s.handle(UpstreamHeld{a, true});
    SUBCASE("as is seen meanwhile") {}
    SUBCASE("as is seen soon after") {
      s.tick(1min);
      s.handle(UpstreamHeld{a, false});
      s.tick(4s);
    }
    SUBCASE("as is seen soon after, but for time in which this process stood still") {
      s.handle(UpstreamHeld{a, false});
      s.now += 1h;
      s.handle(ClockStoodStill{1h});
    }
    s.handle(cut);
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->status == 503);
    CHECK(s.all<EngineAnswered>().empty());
  }
  SUBCASE("its client leaves") {
    s.handle(UpstreamHeld{a, true});
    s.handle(RequestCancelled{r, ""});
    CHECK(s.all<StopProxy>().size() == 1);
  }
  s.check_clean();
}

TEST_CASE("a client that takes too little of a held answer for too long is given up") {
  RequestSite s;
  s.engines.ups["e0"] = s.engines.ups["e1"] = true;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.attempt(r);
  s.handle(UpstreamData{a, 1});
  for (int i = 0; i < 2; ++i) {  // each time anew
    s.handle(UpstreamHeld{a, true});
    s.tick(s.options.held_timeout - 1ms);
    s.handle(UpstreamHeld{a, false});
    s.handle(UpstreamData{a, 1});
  }
  s.handle(UpstreamHeld{a, true});
  s.tick(1min);
  s.now += 1h;
  s.handle(ClockStoodStill{1h});
  s.tick(s.options.held_timeout - 1min - 1ms);
  REQUIRE(s.finished(r) == nullptr);
  CHECK(s.machine.deadline() == s.now + 1ms);
  s.tick(1ms);
  REQUIRE(s.finished(r) != nullptr);
  CHECK(s.finished(r)->status == 499);
  CHECK(s.finished(r)->error->what.find("reads too slowly") != std::string::npos);
  CHECK(s.all<StopProxy>().size() == 1);
  CHECK(s.all<ProxyTo>().size() == 1);
  CHECK(s.all<EngineAnswered>().empty());
  s.check_clean();
}

TEST_CASE("a refusal that passes is no served prompt of its tenant's") {
  RequestSite s;
  s.join("p0", true);
  s.join("d0", false);
  s.engines.ups["e0"] = true;
  // Both tenants wait, while one's other request is refused.
  const AttemptRef bad = s.attempt(s.arrive(40, 0, 8, 1));
  const uint64_t first = s.arrive(40, 0, 8, 1);
  s.handle(ends(s.attempt(first), 429));
  s.answer(s.sent(Step::kReserve).back().of, Step::kReserve, fail(Code::kNoSpace, "no blocks"));
  const uint64_t second = s.arrive(40, 0, 8, 2);
  REQUIRE(s.state(first) == RequestState::kWaiting);
  REQUIRE(s.state(second) == RequestState::kWaiting);
  s.handle(UpstreamData{.of = bad, .tokens = 0, .good = false});
  CHECK(s.state(first) == RequestState::kProxied);
  CHECK(s.state(second) == RequestState::kWaiting);
  s.handle(ends(bad, 400));
}

TEST_CASE("an answer counts for its tenant once, as it comes or at its end") {
  RequestSite s;
  s.join("p0", true);
  s.join("d0", false);
  s.engines.ups["e0"] = true;
  const auto begins = [&](size_t tenant) {
    const uint64_t r = s.arrive(40, 0, 8, tenant);
    REQUIRE(s.state(r) == RequestState::kProxied);
    s.handle(UpstreamData{s.attempt(r), 0});
    return s.attempt(r);
  };
  const AttemptRef one = begins(1), two = begins(2);
  const uint64_t first = s.arrive(40, 0, 8, 1);
  s.handle(ends(s.attempt(first), 429));
  s.answer(s.sent(Step::kReserve).back().of, Step::kReserve, fail(Code::kNoSpace, "no blocks"));
  const uint64_t second = s.arrive(40, 0, 8, 2);
  REQUIRE(s.state(first) == RequestState::kWaiting);
  REQUIRE(s.state(second) == RequestState::kWaiting);
  UpstreamEnded end = ends(one, 200);
  end.output_tokens = 600;
  SUBCASE("at its end: the other tenant is next") {
    s.handle(end);
    s.tick(100ms);
    CHECK(s.state(first) == RequestState::kWaiting);
    CHECK(s.state(second) == RequestState::kProxied);
  }
  SUBCASE("as it comes: a tenant that was served more is not next") {
    s.handle(UpstreamData{one, 600});
    s.handle(UpstreamData{two, 700});
    s.handle(end);
    s.tick(100ms);
    CHECK(s.state(first) == RequestState::kProxied);
    CHECK(s.state(second) == RequestState::kWaiting);
  }
}

TEST_CASE("a pair's halves follow each other") {
  RequestSite s;
  s.engines.ups["half"] = s.engines.ups["full"] = true;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.attempt(r);
  CHECK(!s.all<ProxyTo>()[0].second);
  s.handle(UpstreamData{a, 1});  // of the first half: none is the client's
  CHECK(s.all<DeliverBytes>().empty());
  SUBCASE("to the end") {
    s.handle(ends(a, 200));
    REQUIRE(s.all<ProxyTo>().size() == 2);
    CHECK(s.all<ProxyTo>()[1].second);
    s.handle(UpstreamData{a, 1});
    s.handle(ends(a, 200));
    CHECK(!s.finished(r)->error);
  }
  SUBCASE("unless the second is down") {
    s.engines.ups["full"] = false;
    s.handle(ends(a, 200));
    CHECK(s.all<TriedAgain>().size() == 1);
    REQUIRE(s.all<EngineAnswered>().size() == 1);  // the first did well
    CHECK(s.all<EngineAnswered>()[0].engine == "half");
    CHECK(s.all<EngineAnswered>()[0].well);
    s.handle(RequestCancelled{r, ""});
  }
  s.check_clean();
}

TEST_CASE("both halves of a pair that meets get the request at once") {
  RequestSite s;
  s.engines.ups["meets"] = s.engines.ups["full"] = true;
  RequestArrived arrival{.request = ++s.requests};
  arrival.ask.tokens = 40;
  arrival.ask.streams = true;
  SUBCASE("an answer that is no stream comes when it is whole") {
    arrival.ask.streams = false;
    s.handle(arrival);
    UpstreamEnded e = ends(s.attempt(arrival.request), 200);
    e.first_half = true;
    s.handle(e);
    CHECK(s.machine.deadline() == s.now + s.options.prefill_timeout);
    s.handle(RequestCancelled{arrival.request, ""});
    return s.check_clean();
  }
  s.handle(arrival);
  const uint64_t r = arrival.request;
  const AttemptRef a = s.attempt(r);
  REQUIRE(s.all<ProxyTo>().size() == 2);
  CHECK(!s.all<ProxyTo>()[0].second);
  CHECK(s.all<ProxyTo>()[1].second);
  const auto first = [&](int status) {
    UpstreamEnded e = ends(a, status);
    e.first_half = true;
    e.cached_tokens = 16;
    return e;
  };
  SUBCASE("the first answers, then the second") {
    s.handle(first(200));
    s.handle(UpstreamData{a, 1});
    s.handle(ends(a, 200));
    CHECK(!s.finished(r)->error);
    CHECK(s.finished(r)->progress.cached_tokens == 16);
    CHECK(s.all<EngineAnswered>().size() == 2);
  }
  SUBCASE("the second begins before the first has ended") {
    s.handle(UpstreamData{a, 1});
    s.handle(first(500));  // the KV was there all the same
    REQUIRE(s.finished(r) == nullptr);
    CHECK(!s.all<EngineAnswered>()[0].well);
    s.handle(ends(a, 200));
    CHECK(!s.finished(r)->error);
  }
  SUBCASE("the first fails: both are stopped, and other engines tried") {
    s.engines.ups["e0"] = true;
    s.handle(first(500));
    REQUIRE(s.all<StopProxy>().size() == 1);
    CHECK(s.all<ProxyTo>().back().pair.engine == "e0");
    s.handle(RequestCancelled{r, ""});
  }
  SUBCASE("the second fails before a byte: so too") {
    s.handle(ends(a, 500));
    CHECK(s.all<StopProxy>().size() == 1);
    CHECK(s.all<TriedAgain>().size() == 1);
    s.handle(RequestCancelled{r, ""});
  }
  SUBCASE("the second is full") {
    s.handle(ends(a, 503));
    CHECK(s.finished(r)->status == 503);
    CHECK(s.all<StopProxy>().size() == 1);
  }
  SUBCASE("the first has answered and the second waits for ever") {
    s.handle(first(200));
    s.tick(s.options.pair_wait - 1ms);
    REQUIRE(s.finished(r) == nullptr);
    CHECK(s.machine.deadline() == s.now + 1ms);
    s.tick(1ms);
    CHECK(s.all<StopProxy>().size() == 1);
    CHECK(s.all<TriedAgain>()[0].why.find("no token from full within 10s") != std::string::npos);
    s.handle(RequestCancelled{r, ""});
  }
  s.check_clean();
}

TEST_CASE("the client's mistake is its answer, and what an own worker cannot do goes to engines") {
  RequestSite s;
  s.join("p0", true);
  s.join("d0", false);
  s.engines.ups["e0"] = true;
  RequestArrived e{.request = 1};
  e.ask.tokens = 40;
  e.ask.refusal = RequestError{400, "unsupported", "no such thing"};
  s.handle(e);
  CHECK(s.state(1) == RequestState::kProxied);
  s.handle(ends(s.attempt(1), 422));
  REQUIRE(s.finished(1) != nullptr);
  CHECK(s.finished(1)->status == 422);
  CHECK(s.all<PassOn>().size() == 1);
  s.engines.ups["e0"] = false;
  e.request = 2;
  s.handle(e);
  REQUIRE(s.finished(2) != nullptr);
  CHECK(s.finished(2)->error->code == "unsupported");
  s.check_clean();
}

}  // namespace request_proxy_test
