// Who may go before a request that waits for room.
#include "request_site.h"
#include "sched/request/request_machine.h"

using namespace mc;
using namespace mc::sched;
using namespace mc::sched::test;

namespace request_backfill_test {
namespace {

// A pool of 64 blocks: A has 38 of them, B waits for as many.
struct Blocked : RequestSite {
  explicit Blocked(uint32_t a_tokens = 8) {
    join("p0", true);
    pool = &join("d0", false, 64);
    a = arrive(16 * 38 - a_tokens, 0, a_tokens);
    tokens(prefilling(a), 1);
    heard();
    b = arrive(16 * 38 - 8);
    refuse(b);
    REQUIRE(state(b) == RequestState::kWaiting);
  }
  // The worker speaks: what it has free is known.
  void heard() {
    pool->blocks_free = 26;
    pool->reserved_blocks = 0;
    ++pool->spoke;
  }
  void refuse(uint64_t r) { answer(attempt(r), Step::kReserve, fail(Code::kNoSpace, "no blocks")); }
  // A round: the first tries, and is refused again.
  void round() {
    heard();
    tick(100ms);
    REQUIRE(state(b) == RequestState::kReserving);
    refuse(b);  // what was counted for it is free again
    REQUIRE(state(b) == RequestState::kWaiting);
  }
  FleetWorker* pool = nullptr;
  uint64_t a = 0, b = 0;
};

}  // namespace

TEST_CASE("F68: a request that fits goes before one that does not, and does not delay it") {
  Blocked s;
  const uint64_t c = s.arrive(8);
  CHECK(s.state(c) == RequestState::kWaiting);
  s.round();
  CHECK(s.state(c) == RequestState::kReserving);
  s.serve(c);
  REQUIRE(s.finished(c) != nullptr);
  CHECK(!s.finished(c)->error);
  s.tokens(s.attempt(s.a), 1, "length");  // A ends: B is served
  s.answer(s.attempt(s.a), Step::kPrefill);
  s.pool->blocks_free = 64;
  s.handle(RoomFreed{});
  if (s.state(s.b) == RequestState::kWaiting) s.tick(100ms);
  s.serve(s.b);
  REQUIRE(s.finished(s.b) != nullptr);
  CHECK(!s.finished(s.b)->error);
}

TEST_CASE("F68: behind the first only what leaves it its place, or ends by then") {
  Blocked s(400);  // A's answer may have 400 tokens
  s.handle(RequestCancelled{s.b, ""});
  s.b = s.arrive(16 * 60 - 8);  // of 64 blocks: four are to spare when A ends
  s.refuse(s.b);
  const uint64_t short_one = s.arrive(16 * 6, 0, 16 * 20);  // 320 tokens end before A's
  s.round();
  CHECK(s.state(short_one) == RequestState::kReserving);
  s.handle(RequestCancelled{short_one, ""});
  const uint64_t long_one = s.arrive(16, 0, 16 * 25);
  s.round();
  CHECK(s.state(long_one) == RequestState::kWaiting);
  const uint64_t small = s.arrive(16, 0, 16 * 3);  // as long, in the blocks to spare
  s.round();
  CHECK(s.state(long_one) == RequestState::kWaiting);
  CHECK(s.state(small) == RequestState::kReserving);
}

TEST_CASE("F68: of those behind the first each has its try, and what cannot fit is not asked for") {
  Blocked s;
  const uint64_t large = s.arrive(16 * 30);  // more than is free
  const uint64_t fits = s.arrive(16 * 20, 0, 0), small = s.arrive(16);
  s.round();
  CHECK(s.state(large) == RequestState::kWaiting);
  CHECK(s.state(fits) == RequestState::kReserving);
  s.heard();
  s.refuse(fits);
  CHECK(s.state(fits) == RequestState::kWaiting);
  CHECK(s.state(small) == RequestState::kReserving);
}

TEST_CASE("while the first in turn tries, no other round begins and nobody passes") {
  Blocked s;
  const uint64_t c = s.arrive(8);
  s.heard();
  s.tick(100ms);
  REQUIRE(s.state(s.b) == RequestState::kReserving);
  s.handle(RoomFreed{});
  CHECK(s.state(c) == RequestState::kWaiting);
  const uint64_t d = s.arrive(8);
  CHECK(s.state(d) == RequestState::kWaiting);
  s.refuse(s.b);
  CHECK(s.state(c) == RequestState::kReserving);
}

TEST_CASE("a worker that does not answer the first in turn keeps others for a second at most") {
  Blocked s;
  s.join("d1", false, 64);
  const uint64_t c = s.arrive(8);
  s.tick(100ms);
  REQUIRE(s.state(s.b) == RequestState::kReserving);
  CHECK(s.state(c) == RequestState::kWaiting);
  s.tick(1100ms);
  CHECK(s.state(c) == RequestState::kReserving);
}

TEST_CASE("behind one that did not try yet nobody goes") {
  Blocked s;
  s.arrive(16 * 38);
  s.handle(RequestCancelled{s.b, ""});
  const uint64_t c = s.arrive(8);
  CHECK(s.state(c) == RequestState::kWaiting);
}

TEST_CASE(
    "F69: one of a later priority is served before its time in a steady stream of urgent ones") {
  RequestOptions o;
  RequestSite s(o);
  s.join("p0", true);
  s.join("d0", false);
  // The worker takes one request at a time.
  uint64_t busy = s.arrive();
  s.prefilling(busy);
  const auto all_refused = [&] {
    for (uint64_t r = 1; r <= s.requests; ++r)
      if (r != busy && s.state(r) == RequestState::kReserving)
        s.answer(s.attempt(r), Step::kReserve, fail(Code::kNoSpace, "no blocks"));
  };
  const uint64_t late = s.arrive(40, 1);
  all_refused();
  for (int i = 0; busy != late; ++i) {
    REQUIRE(i < 290);
    s.arrive(40, 0);
    all_refused();
    s.tokens(s.attempt(busy), 1, "length");
    s.answer(s.attempt(busy), Step::kPrefill);
    REQUIRE(s.finished(busy) != nullptr);
    s.now += 100ms;
    s.out.clear();
    s.handle(RoomFreed{});
    const auto next = s.sent(Step::kReserve);
    REQUIRE(next.size() == 1);
    busy = next[0].of.request;
    s.prefilling(busy);
    all_refused();
  }
}

TEST_CASE("F71: a tenant with ten times the load gets as many tokens as another while both wait") {
  RequestSite s;
  s.join("p0", true);
  s.join("d0", false);
  std::map<uint64_t, size_t> tenant;
  uint64_t busy = s.arrive();
  s.prefilling(busy);
  const auto ask = [&](size_t who) {
    const uint64_t r = s.arrive(40, 0, 8, who);
    tenant[r] = who;
    if (s.state(r) == RequestState::kReserving)
      s.answer(s.attempt(r), Step::kReserve, fail(Code::kNoSpace, "no blocks"));
  };
  for (int i = 0; i < 40; ++i) ask(1);
  for (int i = 0; i < 4; ++i) ask(2);
  std::map<size_t, int> served;
  for (int i = 0; i < 20; ++i) {
    s.tokens(s.attempt(busy), 1, "length");
    s.answer(s.attempt(busy), Step::kPrefill);
    s.out.clear();
    s.now += 100ms;
    s.handle(RoomFreed{});
    busy = s.sent(Step::kReserve).at(0).of.request;
    ++served[tenant[busy]];
    s.prefilling(busy);
    for (const SendStep& other : s.sent(Step::kReserve))
      if (other.of.request != busy)
        s.answer(other.of, Step::kReserve, fail(Code::kNoSpace, "no blocks"));
    ask(tenant[busy]);
  }
  CHECK(served[1] == served[2]);
}

}  // namespace request_backfill_test
