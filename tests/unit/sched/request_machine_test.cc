// A case for each row of the machine's table, and for what it must not do.
#include "sched/request/request_machine.h"

#include "request_site.h"

using namespace mc;
using namespace mc::sched;
using namespace mc::sched::test;

namespace request_machine_test {
namespace {

struct Pair : RequestSite {
  explicit Pair(RequestOptions o = {}, AdmissionOptions admission = {})
      : RequestSite(o, admission) {
    join("p0", true);
    join("d0", false);
  }
};

Result<> no_room() { return fail(Code::kNoSpace, "no blocks"); }
Result<> broke() { return fail(Code::kInternal, "the engine broke"); }

}  // namespace

TEST_CASE("an allocation has the number of its decision, whichever is sent first") {
  Pair s;
  const uint64_t first = s.arrive(), second = s.arrive();
  s.answer(s.attempt(second), Step::kReserve);
  s.answer(s.attempt(first), Step::kReserve);
  const std::vector<SendStep> sent = s.sent(Step::kAllocate);
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].of.request == second);
  CHECK(sent[0].number == 2);
  CHECK(sent[1].number == 1);
  // What the worker says of the second knows nothing of the first.
  const double wait = s.workers["p0"]->ledger.wait_ms(s.now);
  s.answer(s.attempt(second), Step::kAllocate);
  CHECK(s.workers["p0"]->ledger.wait_ms(s.now) == doctest::Approx(wait));
}

TEST_CASE("a request goes reserve, allocate, prefill, tokens, commit, and ends") {
  Pair s;
  const uint64_t r = s.arrive();
  CHECK(s.state(r) == RequestState::kReserving);
  CHECK(s.all<DecisionMade>().size() == 1);
  REQUIRE(s.sent(Step::kReserve).size() == 1);
  CHECK(s.sent(Step::kReserve)[0].to.node == "d0");
  CHECK(s.sent(Step::kReserve)[0].with.node == "p0");
  CHECK(s.sent(Step::kAllocate).empty());
  CHECK(s.workers["p0"]->requests == 1);  // charged before anything is answered
  CHECK(s.workers["d0"]->context_tokens == 40);
  const AttemptRef a = s.attempt(r);
  s.answer(a, Step::kReserve);
  CHECK(s.state(r) == RequestState::kAllocating);
  CHECK(s.sent(Step::kAllocate).size() == 1);
  CHECK(s.sent(Step::kPrefill).size() == 1);
  s.answer(a, Step::kAllocate);
  CHECK(s.state(r) == RequestState::kPrefilling);
  s.answer(a, Step::kPrefill);
  CHECK(s.workers["p0"]->requests == 0);
  CHECK(s.sent(Step::kCommit).empty());
  s.tokens(a, 1);
  CHECK(s.state(r) == RequestState::kDecoding);
  CHECK(s.sent(Step::kCommit).size() == 1);
  CHECK(s.all<DeliverTokens>().size() == 1);
  s.tokens(a, 2, "length");
  REQUIRE(s.finished(r) != nullptr);
  CHECK(!s.finished(r)->error);
  CHECK(s.finished(r)->progress.output_tokens == 3);
  CHECK(s.finished(r)->progress.finish == "length");
  CHECK(s.all<AbortAt>().empty());
  CHECK(s.sent(Step::kCommit).size() == 1);
  s.check_clean();
}

TEST_CASE("an early finish waits for the prefill worker's numbers, two seconds at most") {
  for (const bool comes : {true, false}) {
    Pair s;
    const uint64_t r = s.arrive();
    const AttemptRef a = s.prefilling(r);
    s.now += 300ms;
    s.tokens(a, 1, "stop");
    CHECK(s.state(r) == RequestState::kFinishing);
    CHECK(s.sent(Step::kCommit).size() == 1);
    if (comes)
      s.answer(a, Step::kPrefill);
    else
      s.tick(2s);
    REQUIRE(s.finished(r) != nullptr);
    CHECK(!s.finished(r)->error);
    CHECK(s.all<AbortAt>().empty());
    s.check_clean();
  }
}

TEST_CASE("without the prefill worker's numbers nothing is learned of the first step") {
  Pair s;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  s.now += 10s;
  const double before = s.cost.first_step_ms(1);
  s.tokens(a, 1, "stop");
  s.tick(2s);
  REQUIRE(s.finished(r) != nullptr);
  CHECK(s.cost.first_step_ms(1) == before);
  CHECK(s.finished(r)->progress.first_step_ms == 0);
}

TEST_CASE("tokens may overtake the answers of the prefill worker") {
  Pair s;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.attempt(r);
  s.answer(a, Step::kReserve);
  s.tokens(a, 1);
  CHECK(s.state(r) == RequestState::kDecoding);
  s.answer(a, Step::kAllocate);
  s.answer(a, Step::kPrefill);
  CHECK(s.state(r) == RequestState::kDecoding);
  CHECK(s.sent(Step::kCommit).size() == 1);
  s.tokens(a, 1, "length");
  REQUIRE(s.finished(r) != nullptr);
  CHECK(s.finished(r)->progress.cached_tokens.has_value());
  s.check_clean();
}

TEST_CASE("tokens count once, and what came before is left out") {
  Pair s;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  s.handle(TokensArrived{.of = a, .first = 1, .count = 2});
  CHECK(s.machine.next_token(a) == 3);
  s.handle(TokensArrived{.of = a, .first = 1, .count = 2});
  s.handle(TokensArrived{.of = a, .first = 2, .count = 3});
  s.handle(TokensArrived{.of = a, .first = 9, .count = 1});  // some are missing
  CHECK(s.machine.next_token(a) == 5);
  const auto told = s.all<DeliverTokens>();
  REQUIRE(told.size() == 2);
  CHECK(told[0].skip == 0);
  CHECK(told[1].skip == 1);
}

TEST_CASE("more tokens than were asked for are no answer") {
  Pair s;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  s.tokens(a, 1);
  REQUIRE(s.all<DeliverTokens>().size() == 1);
  s.handle(TokensArrived{.of = a, .first = 2, .count = 1'000'000});
  CHECK(s.all<DeliverTokens>().size() == 1);
  CHECK(s.state(r) != RequestState::kDecoding);
}

TEST_CASE("a worker's words reach the client as one line of 1 kB at most") {
  RequestOptions o;
  o.retries = 0;
  Pair s(o);
  const std::string words = "no\n\x1b[2J" + std::string(60'000, 'x');
  const uint64_t first = s.arrive(), second = s.arrive();
  s.answer(s.attempt(first), Step::kReserve, fail(Code::kInternal, "%s", words.c_str()));
  s.handle(TokensArrived{.of = s.prefilling(second), .finish = "error", .error = words});
  for (const uint64_t r : {first, second}) {
    REQUIRE(s.finished(r) != nullptr);
    const std::string& what = s.finished(r)->error->what;
    CHECK(what.find(": no ?[2Jxxx") != std::string::npos);
    CHECK(what.ends_with(" bytes more)"));
    CHECK(what.size() < 1050);
  }
}

// Its own end was `no_capacity`, which says nothing of the worker that was lost.
TEST_CASE("where nobody takes over, the error names what failed first") {
  RequestOptions o;
  o.continues = true;
  Pair s(o);
  const uint64_t begun = s.arrive(), fresh = s.arrive();
  s.tokens(s.prefilling(begun), 1);
  s.leave("d0");
  for (const uint64_t r : {begun, fresh}) {
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->code == "worker_failed");
    CHECK(s.finished(r)->error->what.starts_with(
        "decode on d0: the worker is gone: silent; no other worker took over: "));
  }
  CHECK(s.finished(s.arrive())->error->code == "no_capacity");  // nothing of its own failed
  s.check_clean();
}

TEST_CASE("no room at one worker: another, and the first has its abort") {
  Pair s;
  s.join("p1", true);
  const uint64_t r = s.arrive();
  const AttemptRef a = s.attempt(r);
  s.answer(a, Step::kReserve);
  const std::string first = s.sent(Step::kAllocate)[0].to.node;
  s.answer(a, Step::kAllocate, no_room());
  CHECK(s.state(r) == RequestState::kReserving);
  CHECK(s.attempt(r).attempt > a.attempt);
  CHECK(s.aborts("d0") == 1);
  s.answer(s.attempt(r), Step::kReserve);
  CHECK(s.sent(Step::kAllocate)[1].to.node != first);
  s.serve(r);
  CHECK(s.finished(r) != nullptr);
}

TEST_CASE("no room anywhere: it waits, and each tick tries again") {
  RequestOptions o;
  o.queue_timeout = 1s;
  Pair s(o);
  const uint64_t r = s.arrive();
  s.answer(s.attempt(r), Step::kReserve, no_room());
  CHECK(s.state(r) == RequestState::kWaiting);
  CHECK(s.machine.waiting() == 1);
  s.tick(100ms);
  CHECK(s.state(r) == RequestState::kReserving);
  s.answer(s.attempt(r), Step::kReserve, no_room());
  SUBCASE("until there is room") {
    s.handle(RoomFreed{});
    s.serve(r);
    CHECK(!s.finished(r)->error);
  }
  SUBCASE("or its time is over") {
    s.tick(900ms);
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->status == 503);
    CHECK(s.finished(r)->error->code == "no_capacity");
  }
  s.check_clean();
}

TEST_CASE("refused at once: over an SLO, too large, nobody there, draining, the room is full") {
  SUBCASE("over an SLO") {
    AdmissionOptions admission;
    admission.admission = "predict";
    admission.ttft_slo = 1ns;
    Pair s({}, admission);
    const uint64_t r = s.arrive();
    CHECK(s.finished(r)->error->code == "ttft_slo");
    CHECK(s.finished(r)->error->status == 429);
    CHECK(s.finished(r)->error->retry_after_s >= 1);
    CHECK(s.all<DecisionMade>().size() == 1);
    CHECK(s.all<SendStep>().empty());
  }
  SUBCASE("too large") {
    Pair s;
    s.workers["d0"]->blocks_total = 2;
    const uint64_t r = s.arrive();
    CHECK(s.finished(r)->error->code == "context_length_exceeded");
    CHECK(s.finished(r)->error->what.find("need 3 blocks of a decode worker; the largest has 2") !=
          std::string::npos);
  }
  SUBCASE("nobody there") {
    RequestSite s;
    const uint64_t r = s.arrive();
    CHECK(s.finished(r)->error->code == "no_capacity");
  }
  SUBCASE("draining") {
    Pair s;
    const uint64_t old = s.arrive();
    s.handle(DrainStarted{});
    const uint64_t r = s.arrive();
    CHECK(s.finished(r)->error->code == "draining");
    s.serve(old);
    CHECK(!s.finished(old)->error);
  }
  SUBCASE("the room is full") {
    RequestOptions o;
    o.queue_max = 1;
    Pair s(o);
    s.answer(s.attempt(s.arrive()), Step::kReserve, no_room());
    const uint64_t r = s.arrive();
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->code == "queue_full");
    CHECK(s.machine.waiting() == 1);
  }
}

TEST_CASE("a failure before the first token is tried again elsewhere, then told") {
  Pair s;
  s.join("p1", true);
  s.join("d1", false);
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  s.answer(a, Step::kPrefill, broke());
  CHECK(s.all<TriedAgain>().size() == 1);
  const SendStep second = s.sent(Step::kReserve)[1];
  CHECK(second.to.node == "d1");  // it might have been the decode worker's fault
  CHECK(second.with.node == "p1");
  CHECK(s.aborts("d0") == 1);
  CHECK(s.aborts("p0") == 1);
  s.answer(s.prefilling(r), Step::kPrefill, broke());
  REQUIRE(s.finished(r) != nullptr);
  CHECK(s.finished(r)->error->status == 503);
  CHECK(s.finished(r)->error->what.find("the engine broke") != std::string::npos);
  s.check_clean();
}

TEST_CASE("steps that are never answered end by the machine's own deadlines") {
  RequestOptions o;
  o.retries = 0;
  for (const int answered : {0, 1, 2, 3}) {
    CAPTURE(answered);
    Pair s(o);
    const uint64_t r = s.arrive();
    const AttemptRef a = s.attempt(r);
    const Step steps[] = {Step::kReserve, Step::kAllocate, Step::kPrefill};
    for (int i = 0; i < answered; ++i) s.answer(a, steps[i]);
    REQUIRE(s.machine.deadline() < Time::max());
    s.now = s.machine.deadline();
    s.tick();
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->status == 504);
    s.check_clean();
  }
}

TEST_CASE("a worker that goes before the first token does not take its request along") {
  Pair s;
  s.join("p1", true);
  s.join("d1", false);
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  const std::string was = s.sent(Step::kAllocate)[0].to.node;
  s.leave(was);
  CHECK(s.state(r) == RequestState::kReserving);
  s.answer(a, Step::kPrefill, broke());  // of the older attempt
  CHECK(s.all<TriedAgain>().size() == 1);
  s.serve(r);
  CHECK(!s.finished(r)->error);
  CHECK(s.finished(r)->progress.prefill != was);
  s.check_clean();
}

TEST_CASE("a worker whose role changed costs no try") {
  RequestOptions o;
  o.retries = 0;
  Pair s(o);
  s.join("p1", true);
  const uint64_t r = s.arrive();
  s.leave("p0", true);
  s.serve(r);
  CHECK(!s.finished(r)->error);
  CHECK(s.all<TriedAgain>().empty());
}

TEST_CASE("after the first token the prefill worker is not needed, the decode worker is") {
  Pair s;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  s.tokens(a, 1);
  SUBCASE("prefill goes") {
    s.leave("p0");
    s.tokens(a, 1, "stop");
    REQUIRE(s.finished(r) != nullptr);  // its numbers are not waited for
    CHECK(!s.finished(r)->error);
  }
  SUBCASE("prefill fails") {
    s.answer(a, Step::kPrefill, broke());
    CHECK(s.state(r) == RequestState::kDecoding);
    s.tokens(a, 1, "stop");
    REQUIRE(s.finished(r) != nullptr);
    CHECK(!s.finished(r)->error);
  }
  SUBCASE("decode goes") {
    s.leave("d0");
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->status == 503);
    CHECK(s.all<TriedAgain>().empty());
  }
  SUBCASE("decode is silent") {
    s.tick(s.options.token_timeout);
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->status == 504);
  }
  SUBCASE("decode says something unknown") {
    s.tokens(a, 0, "bored");
    REQUIRE(s.finished(r) != nullptr);
    CHECK(s.finished(r)->error->what.find("unknown finish 'bored'") != std::string::npos);
  }
  s.check_clean();
}

// F95
TEST_CASE("after the first token another decode worker goes on, behind the tokens that were told") {
  RequestOptions o;
  o.continues = true;
  RequestSite s(o);
  s.join("p0", true);
  s.join("d0", false);
  s.join("d1", false);
  const uint64_t r = s.arrive(40, 0, 8);
  const AttemptRef a = s.prefilling(r);
  s.answer(a, Step::kPrefill);
  s.tokens(a, 3);
  const std::string first = s.machine.progress(r)->decode;
  const double ttft = s.machine.progress(r)->ttft_ms;
  s.now += 50ms;
  SUBCASE("it goes") { s.leave(first); }
  SUBCASE("it is silent") { s.tick(s.options.token_timeout); }
  SUBCASE("it fails") { s.tokens(a, 0, "error"); }
  REQUIRE(s.finished(r) == nullptr);
  CHECK(s.all<TriedAgain>().size() == 1);
  CHECK(s.machine.next_token(a) == 0);  // what it may still say
  const AttemptRef b = s.prefilling(r);
  CHECK(s.sent(Step::kReserve).back().to.node != first);
  CHECK(s.machine.next_token(b) == 1);  // of this attempt
  s.answer(b, Step::kPrefill);
  s.tokens(b, 4);
  CHECK(s.machine.progress(r)->output_tokens == 7);
  CHECK(s.machine.progress(r)->ttft_ms == ttft);
  s.tokens(b, 1, "length");
  REQUIRE(s.finished(r) != nullptr);
  CHECK(!s.finished(r)->error);
  CHECK(s.finished(r)->progress.output_tokens == 8);
  s.check_clean();
}

TEST_CASE("an answer that others go on with waits for room from the failure on, not its arrival") {
  RequestOptions o;
  o.continues = true;
  RequestSite s(o, {.admission = "baseline", .ttft_slo = 1s, .tbt_slo = 1s});
  s.join("p0", true);
  s.join("d0", false);
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  s.answer(a, Step::kPrefill);
  s.tokens(a, 1);
  s.now += 2 * o.queue_timeout;
  s.join("d1", false);
  s.leave("d0");
  const AttemptRef b = s.attempt(r);  // not refused for a promise it was late for
  CHECK(b != a);
  s.answer(b, Step::kReserve, fail(Code::kNoSpace, "no blocks"));
  CHECK(s.state(r) == RequestState::kWaiting);
  s.tick(1ms);
  REQUIRE(s.finished(r) == nullptr);
  s.serve(r);
  REQUIRE(s.finished(r) != nullptr);
  CHECK(!s.finished(r)->error);
  s.check_clean();
}

TEST_CASE("an answer that others go on with forgets who had no room for its prompt") {
  RequestOptions o;
  o.continues = true;
  RequestSite s(o);
  s.join("p0", true);
  s.join("d0", false);
  s.engines.ups["e0"] = true;
  s.workers["p0"]->ledger.tell_others(60'000, s.now);  // so the engine has it first, and is full
  const uint64_t r = s.arrive();
  REQUIRE(s.state(r) == RequestState::kProxied);
  s.handle(UpstreamEnded{.of = s.attempt(r), .status = 429});
  REQUIRE(s.state(r) == RequestState::kReserving);
  const AttemptRef a = s.sent(Step::kReserve).back().of;
  for (const Step step : {Step::kReserve, Step::kAllocate, Step::kPrefill}) s.answer(a, step);
  s.tokens(a, 3);
  REQUIRE(s.state(r) == RequestState::kDecoding);
  s.engines.ups["e0"] = false;
  s.leave("d0");
  REQUIRE(s.finished(r) != nullptr);  // nobody is left
  CHECK(s.all<PassOn>().empty());     // the engine's own words have no place behind tokens
  CHECK(s.finished(r)->error);
}

TEST_CASE("a prefill worker that goes after the first token computes no prefix any more") {
  Pair s;
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  s.tokens(a, 1);
  CHECK(s.fleet.pending() == 1);
  s.leave("p0");
  CHECK(s.fleet.pending() == 0);
  s.tokens(a, 1, "length");
  REQUIRE(s.finished(r) != nullptr);
  CHECK(!s.finished(r)->error);
  s.check_clean();
}

TEST_CASE("cancelled in any state: aborts, and the sink hears nothing more") {
  for (const int steps : {0, 1, 2, 3, 4}) {
    CAPTURE(steps);
    Pair s;
    const uint64_t r = s.arrive();
    const AttemptRef a = s.attempt(r);
    if (steps > 0) s.answer(a, Step::kReserve);
    if (steps > 1) s.answer(a, Step::kAllocate);
    if (steps > 2) s.answer(a, Step::kPrefill);
    if (steps > 3) s.tokens(a, 1);
    s.handle(RequestCancelled{r, "gone"});
    CHECK(s.finished(r) == nullptr);
    CHECK(s.aborts("d0") == 1);
    CHECK(s.aborts("p0") == (steps == 0 || steps == 4 ? 0 : 1));  // committed: its blocks stay
    s.tokens(a, 1, "stop");
    CHECK(s.all<DeliverTokens>().size() == (steps > 3 ? 1 : 0));
    s.check_clean();
  }
}

TEST_CASE(
    "a worker given up for silence and heard again is not refunded what another was charged") {
  Pair s;
  s.join("p1", true);
  const uint64_t r = s.arrive();
  const AttemptRef a = s.prefilling(r);
  s.tokens(a, 1);
  const std::string prefill = s.sent(Step::kAllocate)[0].to.node;
  s.leave(prefill, false, true);  // the same process, the same epoch
  s.tokens(a, 1, "stop");
  s.tick(2s);
  REQUIRE(s.finished(r) != nullptr);
  CHECK(s.workers[prefill]->requests == 0);
  s.check_clean();
}

namespace {

// p0 computes a long prompt, and is busy; p1 is to fetch it for another request with that one.
struct Fetching : Pair {
  Fetching() {
    arrive(16 * 500);
    join("p1", true);
    cost.learn_fetch(uint64_t{1} << 30, 1);
    workers["p0"]->ledger.tell_others(1000, now);
    out.clear();
    r = arrive(16 * 500, 0, 8, 0, 1);
    REQUIRE(sent(Step::kPin).size() == 1);
    REQUIRE(sent(Step::kPin)[0].to.node == "p0");
    a = attempt(r);
  }
  uint64_t r = 0;
  AttemptRef a;
};

}  // namespace

TEST_CASE(
    "a prefix elsewhere is pinned while the decode worker reserves, and both are waited for") {
  Fetching s;
  SUBCASE("pinned last") {
    s.answer(s.a, Step::kReserve);
    CHECK(s.state(s.r) == RequestState::kReserving);
    s.answer(s.a, Step::kPin);
  }
  SUBCASE("reserved last") {
    s.answer(s.a, Step::kPin);
    s.answer(s.a, Step::kReserve);
  }
  SUBCASE("refused") {
    s.answer(s.a, Step::kReserve);
    s.answer(s.a, Step::kPin, no_room());
  }
  SUBCASE("never answered") {
    s.answer(s.a, Step::kReserve);
    s.now = s.machine.deadline();
    s.tick();
  }
  CHECK(s.state(s.r) == RequestState::kAllocating);
  CHECK(s.sent(Step::kAllocate)[0].to.node == "p1");
}

TEST_CASE("a holder of a prefix that goes before it answered is not waited for") {
  Fetching s;
  s.answer(s.a, Step::kReserve);
  s.leave("p0");
  CHECK(s.state(s.r) == RequestState::kAllocating);
  CHECK(s.attempt(s.r) == s.a);
}

TEST_CASE("a service that ends tells all; a process that stood still is late for nothing") {
  Pair s;
  const uint64_t r = s.arrive();
  const Time due = s.machine.deadline();
  s.handle(ClockStoodStill{10s});
  CHECK(s.machine.deadline() == due + 10s);
  s.handle(AllEnded{"bye"});
  REQUIRE(s.finished(r) != nullptr);
  CHECK(s.finished(r)->error->code == "draining");
  s.check_clean();
}

TEST_CASE("a process that stood still is late for nothing, also for a request that waits again") {
  RequestOptions o;
  o.queue_timeout = 5s;
  RequestSite s(o);
  s.join("p0", true);
  s.join("d0", false);
  const uint64_t r = s.arrive();
  s.handle(ClockStoodStill{10s});
  s.now += 12s;
  s.answer(s.attempt(r), Step::kReserve, fail(Code::kNoSpace, "no blocks"));
  REQUIRE(s.machine.state(r) == RequestState::kWaiting);
  CHECK(s.machine.deadline() == s.now + 3s);
  s.handle(RequestCancelled{r, ""});
  s.check_clean();
}

}  // namespace request_machine_test
