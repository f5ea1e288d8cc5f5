// How long a queue pair may take over transfers that nobody wants any more.
#include "xfer/rails/patience.h"

#include <doctest/doctest.h>

using namespace mc;
using mc::xfer::Patience;
using namespace std::chrono_literals;

namespace patience_test {
namespace {

constexpr Time kStart = Time(1h);
using Verdict = Patience::Verdict;

}  // namespace

TEST_SUITE("xfer/patience") {
  TEST_CASE("a queue pair whose transfers are all wanted is kept, however slow it is") {
    Patience patience;
    CHECK(patience.judge({.heard = kStart, .others = true}, kStart + 1h) == Verdict::kKeep);
  }

  TEST_CASE("an unwanted transfer has 20 ms, or twice what others took, half a second at most") {
    Patience patience;
    CHECK(patience.judge({kStart, kStart, false}, kStart + 19ms) == Verdict::kKeep);
    for (int i = 0; i < 100; ++i) patience.ended(50ms);
    CHECK(patience.judge({kStart, kStart, false}, kStart + 95ms) == Verdict::kKeep);
    CHECK(patience.judge({kStart, kStart, false}, kStart + 101ms) == Verdict::kEnd);
    for (int i = 0; i < 100; ++i) patience.ended(10s);
    CHECK(patience.judge({kStart, kStart, false}, kStart + 499ms) == Verdict::kKeep);
    CHECK(patience.judge({kStart, kStart, false}, kStart + 501ms) == Verdict::kEnd);
  }

  TEST_CASE("where there are others, another queue pair takes over; without, this one ends") {
    Patience some, none;
    const Time now = kStart + 30ms;
    CHECK(some.judge({kStart, now - 5ms, true}, now) == Verdict::kReplace);
    CHECK(none.judge({kStart, now - 5ms, false}, now) == Verdict::kEnd);
  }

  TEST_CASE("a queue pair that was replaced ends with the others on it, or after half a second") {
    const Patience patience;
    const Time now = kStart + 100ms;
    CHECK_FALSE(patience.over({kStart, now - 5ms, true}, kStart, now));
    CHECK(patience.over({kStart, now - 5ms, false}, kStart, now));
    CHECK(patience.over({Time::max(), now, false}, kStart, now));
    CHECK(patience.over({kStart, now - 25ms, true}, kStart, now));
    CHECK(patience.over({kStart, kStart + 499ms, true}, kStart, kStart + 500ms));
    CHECK_FALSE(patience.over({kStart, kStart - 1h, true}, kStart, kStart + 10ms));
  }

  TEST_CASE("a wait that grew is half as long after each 2 s, and 20 ms in the end") {
    const auto grown = [] {
      Patience patience;
      for (int i = 0; i < 6; ++i)
        CHECK(patience.judge({kStart, kStart, true}, kStart + 501ms) == Verdict::kReplace);
      return patience;
    };
    const auto kept = [](Patience patience, Duration later, Duration wait) {
      const Time since = kStart + later, now = since + wait;
      return patience.judge({since, since, true}, now) == Verdict::kKeep;
    };
    CHECK(kept(grown(), 1s, 499ms));
    CHECK_FALSE(kept(grown(), 1s, 501ms));
    CHECK(kept(grown(), 3s, 249ms));
    CHECK_FALSE(kept(grown(), 3s, 251ms));
    CHECK(kept(grown(), 5s, 124ms));
    CHECK_FALSE(kept(grown(), 5s, 126ms));
    CHECK(kept(grown(), 1h, 19ms));
    CHECK_FALSE(kept(grown(), 1h, 21ms));
    // What grows again meanwhile starts those 2 s anew.
    Patience again = grown();
    const Time then = kStart + 3s;
    CHECK(again.judge({then, then, true}, then + 251ms) == Verdict::kReplace);
    CHECK(kept(again, 5s, 240ms));
    CHECK(kept(again, 4s, 499ms));
  }

  TEST_CASE("cancels without end cost a rail few queue pairs a second") {
    Patience patience;
    int ended = 0;
    Time since = kStart;
    for (Time now = kStart; now < kStart + 10s; now += 5ms) {  // one is cancelled all the time
      if (patience.judge({since, since, true}, now) == Verdict::kKeep) continue;
      ++ended;
      since = now;
    }
    CHECK(ended <= 10 * 2 + 6);
    // Those that end by themselves make it less patient again.
    for (int i = 0; i < 100; ++i) patience.ended_unwanted(1ms);
    CHECK(patience.judge({since, since, false}, since + 25ms) == Verdict::kEnd);
  }
}

}  // namespace patience_test
