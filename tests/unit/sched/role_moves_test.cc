// Which worker changes its role, and which role one that joins gets.
#include "sched/request/role_moves.h"

#include <doctest/doctest.h>

#include <deque>

namespace mc::sched {
namespace role_moves_test {
namespace {

using namespace std::chrono_literals;

struct Site {
  FleetWorker& add(const std::string& node, bool prefill, uint64_t requests = 0,
                   const std::string& control = "") {
    FleetWorker& w = workers.emplace_back();
    w.node = node;
    w.control = control.empty() ? node : control;
    w.prefill = prefill;
    w.requests = requests;
    roster.join(w);
    return w;
  }
  std::string least(bool prefill, bool halves) {
    const FleetWorker* const w = moves.least_loaded(prefill, halves, now);
    return w == nullptr ? "" : w->node;
  }
  Time now = Time{} + 1h;
  std::deque<FleetWorker> workers;
  Roster roster;
  RoleMoves moves{roster};
};

}  // namespace

TEST_CASE("one that joins goes to an empty side, else to the busier, else to the smaller") {
  Site s;
  CHECK(s.moves.joins_prefill(PdMove::kToDecode));
  s.add("p0", true);
  CHECK_FALSE(s.moves.joins_prefill(PdMove::kToPrefill));
  CHECK(s.moves.joins_prefill(PdMove::kToPrefill, 0, 1));  // one is on its way there
  s.add("d0", false);
  CHECK(s.moves.joins_prefill(PdMove::kToPrefill));
  CHECK_FALSE(s.moves.joins_prefill(PdMove::kToDecode));
  CHECK(s.moves.joins_prefill(PdMove::kNone));
  CHECK_FALSE(s.moves.joins_prefill(PdMove::kNone, 1, 0));
}

TEST_CASE("one that leaves is of the idler side, unless it is the last there") {
  Site s;
  s.add("p0", true);
  s.add("p1", true);
  s.add("d0", false);
  CHECK(s.moves.leaves_prefill(PdMove::kToDecode));
  CHECK(s.moves.leaves_prefill(PdMove::kToPrefill));
  CHECK(s.moves.leaves_prefill(PdMove::kNone));
  s.add("d1", false);
  CHECK_FALSE(s.moves.leaves_prefill(PdMove::kToPrefill));
}

TEST_CASE("who has the least to finish moves, one at a time, and never half a process") {
  Site s;
  FleetWorker& busy = s.add("p0", true, 5);
  FleetWorker& idle = s.add("p1", true, 1);
  s.add("p2", true, 0, "both");
  s.add("d2", false, 0, "both");
  CHECK(s.least(true, true) == "p2");
  CHECK(s.least(true, false) == "p1");
  CHECK(s.moves.move(PdMove::kToPrefill, s.now) == nullptr);  // there is but one, and it is a half
  CHECK(s.moves.move(PdMove::kNone, s.now) == nullptr);
  REQUIRE(s.moves.move(PdMove::kToDecode, s.now) == &idle);
  CHECK(idle.draining);
  CHECK(s.moves.moving(s.now));
  CHECK(s.moves.move(PdMove::kToDecode, s.now) == nullptr);
  s.roster.leave(idle);
  idle.prefill = idle.draining = false;
  s.roster.join(idle);
  CHECK_FALSE(s.moves.moving(s.now));
  REQUIRE(s.moves.move(PdMove::kToDecode, s.now) == &busy);
  CHECK_FALSE(s.moves.moving(s.now + RoleMoves::kDrainMax));
  busy.draining = false;
  REQUIRE(s.moves.move(PdMove::kToDecode, s.now) == &busy);
  s.moves.fails("p0");
  CHECK_FALSE(s.moves.moving(s.now));
}

TEST_CASE("a move ends with its worker, and another may move") {
  Site s;
  FleetWorker& first = s.add("p0", true);
  FleetWorker& second = s.add("p1", true, 1);
  s.add("p2", true, 2);
  REQUIRE(s.moves.move(PdMove::kToDecode, s.now) == &first);
  s.roster.leave(first);  // it died, and nobody says more
  CHECK_FALSE(s.moves.moving(s.now));
  REQUIRE(s.moves.move(PdMove::kToDecode, s.now) == &second);
  // One that restarts in its old role has forgotten that it was to move.
  s.roster.leave(second);
  second.draining = false;
  ++second.epoch;
  s.roster.join(second);
  CHECK_FALSE(s.moves.moving(s.now));
  // The end of a move that is over says nothing of the next.
  REQUIRE(s.moves.move(PdMove::kToDecode, s.now) == &second);
  s.moves.fails("p0");
  CHECK(s.moves.moving(s.now));
}

TEST_CASE("equals go by their queue, then what they have cached, then their name") {
  Site s;
  FleetWorker& a = s.add("a", true);
  FleetWorker& b = s.add("b", true);
  CHECK(s.least(true, true) == "a");
  a.blocks_cached = 1;
  CHECK(s.least(true, true) == "b");
  b.ledger.charge(1, 100, 10, s.now);
  CHECK(s.least(true, true) == "a");
  a.draining = true;
  CHECK(s.least(true, true) == "b");
}

}  // namespace role_moves_test
}  // namespace mc::sched
