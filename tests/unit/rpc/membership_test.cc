#include "rpc/membership.h"

#include <doctest/doctest.h>

namespace mc::rpc {
namespace {

using namespace std::chrono_literals;
using Kind = Membership::Change::Kind;
using Changes = std::vector<Membership::Change>;
const Time t0{100s};

// Ticks at every deadline up to `end` and gathers what happened, with the time of the last of it.
Changes run(Membership& m, Time from, Time end, Time* last = nullptr) {
  Changes all;
  for (Time now = from; now <= end; now = std::max(m.deadline(), now + 1ns)) {
    for (auto& change : m.tick(now)) {
      all.push_back(std::move(change));
      if (last != nullptr) *last = now;
    }
    if (m.deadline() == Time::max()) break;
  }
  return all;
}

}  // namespace

TEST_SUITE("rpc/membership") {
  TEST_CASE("a node joins once, is suspect after three seconds of silence and dead after ten") {
    Membership m({10s, 3s});
    CHECK(m.deadline() == Time::max());
    REQUIRE(m.heard("a", 7, t0).has_value());
    CHECK(m.deadline() == t0);  // there is something to tell
    CHECK(m.tick(t0) == Changes{{Kind::kJoined, "a", 7}});
    REQUIRE(m.heard("a", 7, t0).has_value());
    CHECK(m.tick(t0).empty());
    CHECK(run(m, t0, t0 + 3s).empty());
    CHECK_FALSE(m.suspect("a", t0 + 3s));
    CHECK(m.suspect("a", t0 + 3001ms));  // whether or not a tick has told so
    Time when{};
    CHECK(run(m, m.deadline(), t0 + 9999ms, &when) == Changes{{Kind::kSuspect, "a", 7}});
    CHECK(when <= t0 + 3s + 10s / 8);
    CHECK(run(m, t0 + 10s, t0 + 20s) == Changes{{Kind::kDead, "a", 7}});
    CHECK_FALSE(m.alive("a"));
    CHECK(m.deadline() == Time::max());
  }

  TEST_CASE("a node that is heard again recovers; with a larger epoch it was restarted") {
    Membership m({10s, 3s});
    REQUIRE(m.heard("a", 1, t0).has_value());
    m.tick(t0);
    m.accuse("a", t0 + 1s);
    m.accuse("a", t0 + 1s);
    m.accuse("unknown", t0 + 1s);
    CHECK(m.suspect("a", t0 + 1s));
    CHECK(m.suspect("unknown", t0 + 1s));
    REQUIRE(m.heard("a", 1, t0 + 2s).has_value());
    CHECK(m.tick(t0 + 2s) == Changes{{Kind::kSuspect, "a", 1}, {Kind::kRecovered, "a", 1}});
    m.accuse("a", t0 + 3s);
    REQUIRE(m.heard("a", 2, t0 + 3s).has_value());
    CHECK_FALSE(m.suspect("a", t0 + 3s));
    CHECK(m.tick(t0 + 3s) == Changes{{Kind::kSuspect, "a", 1}, {Kind::kRestarted, "a", 2}});
    const auto old = m.heard("a", 1, t0 + 4s);
    CHECK(old.error().code == Code::kStale);
    CHECK(old.error().what.find("node a ") == 0);
    CHECK(run(m, t0 + 4s, t0 + 13s + 10s / 8) ==
          Changes{{Kind::kSuspect, "a", 2}, {Kind::kDead, "a", 2}});  // the old one kept it not
  }

  TEST_CASE("however long the watcher stood still, it counts as one period") {
    Membership m({10s, 3s});
    REQUIRE(m.heard("a", 1, t0).has_value());
    m.tick(t0);
    CHECK(run(m, t0, t0 + 2s).empty());
    CHECK_FALSE(m.suspect("a", t0 + 1h));  // asked before the first tick after it
    CHECK(m.silence("a", t0 + 1h) == 2500ms);
    CHECK(m.tick(t0 + 1h).empty());
    CHECK(m.stalls() == 1);
    CHECK(m.silence("a", t0 + 1h) == 2500ms);
    CHECK_FALSE(m.suspect("a", t0 + 1h));
    CHECK(run(m, t0 + 1h, t0 + 1h + 5s) == Changes{{Kind::kSuspect, "a", 1}});
    CHECK(m.tick(t0 + 2h).empty());
    CHECK(run(m, t0 + 2h, t0 + 2h + 5s) == Changes{{Kind::kDead, "a", 1}});
    // Nor is it a stall when there was nobody to watch.
    REQUIRE(m.heard("b", 1, t0 + 5h).has_value());
    m.tick(t0 + 5h);
    CHECK(m.stalls() == 2);
  }

  TEST_CASE("a watcher that always ticks late still finds out who died, and spares who beats") {
    Membership m({10s, 3s});
    REQUIRE(m.heard("a", 1, t0).has_value());
    Changes all;
    int ticks = 0;
    for (Time now = t0; m.alive("a") && ticks < 100; now += 20s, ++ticks) {
      REQUIRE(m.heard("b", 1, now).has_value());
      for (auto& change : m.tick(now)) all.push_back(std::move(change));
    }
    CHECK(ticks == 9);
    CHECK(all.back() == Membership::Change{Kind::kDead, "a", 1});
    CHECK(m.alive("b"));
  }

  TEST_CASE("changes come in the order of the names, and there are only so many members") {
    Membership m({10s, 3s, 2});
    REQUIRE(m.heard("b", 1, t0).has_value());
    REQUIRE(m.heard("a", 1, t0).has_value());
    CHECK(m.heard("c", 1, t0).error().code == Code::kBusy);
    CHECK(m.heard("a", 1, t0).has_value());
    CHECK(m.tick(t0) == Changes{{Kind::kJoined, "b", 1}, {Kind::kJoined, "a", 1}});
    CHECK(run(m, t0, t0 + 5s) == Changes{{Kind::kSuspect, "a", 1}, {Kind::kSuspect, "b", 1}});
    m.forget("b");
    CHECK(run(m, t0 + 5s, t0 + 10s + 10s / 8) == Changes{{Kind::kDead, "a", 1}});
  }
}

}  // namespace mc::rpc
