// Requests on a process with both halves, beside other workers.
#include "request_site.h"
#include "sched/request/request_machine.h"

using namespace mc;
using namespace mc::sched;
using namespace mc::sched::test;

namespace request_halves_test {
namespace {

struct Halves : RequestSite {
  explicit Halves(uint64_t blocks = 1000) {
    join("b0", true).control = "both";
    join("b0.d", false, blocks).control = "both";
    join("a0", false);  // of equals it goes first, by its name
  }
  std::string decode_of(uint64_t request) const {
    std::string at;
    for (const SendStep& s : sent(Step::kReserve))
      if (s.of.request == request) at = s.to.node;
    return at;
  }
};

}  // namespace

TEST_CASE("a prompt is decoded by the other half of its process") {
  Halves s;
  CHECK(s.decode_of(s.arrive()) == "b0.d");
}

TEST_CASE("a decode half that is too small is not asked") {
  Halves s(2);
  CHECK(s.decode_of(s.arrive()) == "a0");
}

TEST_CASE("a decode half without room is not asked while another has some") {
  Halves s;
  s.workers["b0.d"]->blocks_free = 2;
  CHECK(s.decode_of(s.arrive()) == "a0");
  s.workers["a0"]->draining = true;
  CHECK(s.decode_of(s.arrive()) == "b0.d");
}

TEST_CASE("a decode half that failed a request is tried again only if nothing else is left") {
  Halves s;
  const uint64_t r = s.arrive();
  SUBCASE("another is there") {
    s.answer(s.attempt(r), Step::kReserve, fail(Code::kInvalid, "no"));
    CHECK(s.sent(Step::kReserve).size() == 2);
    CHECK(s.decode_of(r) == "a0");
  }
  SUBCASE("it alone is left") {
    s.workers["a0"]->draining = true;
    s.answer(s.attempt(r), Step::kReserve, fail(Code::kInvalid, "no"));
    CHECK(s.sent(Step::kReserve).size() == 2);
    CHECK(s.decode_of(r) == "b0.d");
  }
}

}  // namespace request_halves_test
