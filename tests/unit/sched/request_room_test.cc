// Who has a place in the room of those that wait.
#include "request_site.h"
#include "sched/request/request_machine.h"

using namespace mc;
using namespace mc::sched;
using namespace mc::sched::test;

namespace request_room_test {
namespace {

struct Pair : RequestSite {
  explicit Pair(RequestOptions o) : RequestSite(o) {
    join("p0", true);
    join("d0", false);
  }
};

Result<> no_room() { return fail(Code::kNoSpace, "no blocks"); }

}  // namespace

TEST_CASE("one that waited and tries in vain keeps its place in a full room") {
  RequestOptions o;
  o.queue_max = 1;
  SUBCASE("at a worker: who comes meanwhile has none") {
    Pair s(o);
    const uint64_t first = s.arrive();
    s.answer(s.attempt(first), Step::kReserve, no_room());
    s.tick(100ms);
    REQUIRE(s.state(first) == RequestState::kReserving);
    const uint64_t later = s.arrive();
    REQUIRE(s.finished(later) != nullptr);
    CHECK(s.finished(later)->error->code == "queue_full");
    CHECK(s.finished(later)->error->what == "1 requests wait for room already");
    s.answer(s.attempt(first), Step::kReserve, no_room());
    CHECK(s.state(first) == RequestState::kWaiting);
    CHECK(s.machine.waiting() == 1);
  }
  SUBCASE("at an engine, behind which others began to wait") {
    Pair s(o);
    s.engines.ups["e0"] = true;
    const auto full = [&](uint64_t r) {  // its engine, then its worker
      REQUIRE(s.state(r) == RequestState::kProxied);
      UpstreamEnded e{.of = s.attempt(r)};
      e.status = 429;
      s.handle(e);
      s.answer(s.sent(Step::kReserve).back().of, Step::kReserve, no_room());
    };
    const uint64_t first = s.arrive();
    full(first);
    REQUIRE(s.state(first) == RequestState::kWaiting);
    s.tick(100ms);
    const uint64_t later = s.arrive();
    full(later);
    REQUIRE(s.state(later) == RequestState::kWaiting);
    full(first);
    CHECK(s.state(first) == RequestState::kWaiting);
  }
  SUBCASE("one that comes to a full room and goes first has no place to come back to") {
    Pair s(o);
    const uint64_t first = s.arrive();
    s.answer(s.attempt(first), Step::kReserve, no_room());
    const uint64_t urgent = s.arrive(40, -1);
    REQUIRE(s.state(urgent) == RequestState::kReserving);
    s.answer(s.attempt(urgent), Step::kReserve, no_room());
    REQUIRE(s.finished(urgent) != nullptr);
    CHECK(s.finished(urgent)->error->code == "queue_full");
    CHECK(s.state(first) == RequestState::kWaiting);
  }
}

TEST_CASE(
    "what a decode worker reserved and a prefill worker refuses is tried elsewhere on both sides") {
  Pair s(RequestOptions{});
  s.join("p1", true);
  s.join("d1", false);
  const uint64_t r = s.arrive();
  const AttemptRef a = s.attempt(r);
  s.answer(a, Step::kReserve);
  const std::string first = s.sent(Step::kReserve)[0].to.node;
  s.answer(a, Step::kAllocate, fail(Code::kStale, "the segment is stale"));
  REQUIRE(s.sent(Step::kReserve).size() == 2);
  CHECK(s.sent(Step::kReserve)[1].to.node != first);
  s.serve(r);
  CHECK(s.finished(r) != nullptr);
  s.check_clean();
}

}  // namespace request_room_test
