#include "store/node/keep_clock.h"

#include <doctest/doctest.h>

namespace mc::store {
namespace {

using namespace std::chrono_literals;

TEST_CASE("F99: a time to live is what is left of it, whatever a master's clock says") {
  const Time start{1000s};
  for (const int64_t ahead : {0, 3600, -3600, 100'000'000}) {
    CAPTURE(ahead);
    KeepClock clock({1'700'000'000, 0, ""}, start);
    const uint64_t master_s = static_cast<uint64_t>(1'700'000'000 + ahead);
    clock.mounted(master_s, start);
    const uint64_t until = clock.here(master_s + 60);
    CHECK(until == clock.now_s(start) + 60);
    CHECK(clock.there(until) == master_s + 60);
    // Another master, ten seconds later, of another time of day.
    clock.mounted(1'800'000'000, start + 10s);
    CHECK(clock.there(until) == 1'800'000'000 + 50);
    CHECK(clock.now_s(start + 10s) == 1'700'000'010);
  }
}

TEST_CASE(
    "F99: what has no end keeps none, what is over stays over, and an old master says nothing") {
  KeepClock clock({1000, 0, ""}, Time{});
  clock.mounted(500'000, Time{});
  CHECK(clock.here(0) == 0);
  CHECK(clock.there(0) == 0);
  CHECK(clock.here(1) == 1);  // long ago: not without an end
  CHECK(clock.there(UINT64_MAX) > uint64_t{1} << 60);
  clock.mounted(0, Time{});
  CHECK(clock.here(77) == 77);
  CHECK(clock.there(77) == 77);
}

TEST_CASE("F99: a step of the wall clock is noticed once, and slow drift is none") {
  KeepClock clock({1000, 0, ""}, Time{});
  CHECK(clock.stepped_s(1000, Time{}) == 0);
  CHECK(clock.stepped_s(1010, Time{} + 10s) == 0);
  CHECK(clock.stepped_s(4620, Time{} + 20s) == 3600);
  CHECK(clock.stepped_s(4630, Time{} + 30s) == 0);
  CHECK(clock.stepped_s(1040, Time{} + 40s) == -3600);
  CHECK(clock.stepped_s(1052, Time{} + 50s) == 0);
  CHECK(clock.now_s(Time{} + 50s) == 1050);
}

TEST_CASE(
    "what is left of a time to live goes on in the next process, whatever its wall clock says") {
  constexpr uint64_t kWall = 1'700'000'000;
  const KeepClock before({kWall, 500, "boot"}, Time{});
  const uint64_t until = before.now_s(Time{}) + 3600;
  const ClockMark mark = before.mark({kWall + 100, 600, "boot"}, Time{} + 100s);
  CHECK(mark.own_s == kWall + 100);
  const auto left = [&](const HostTimes& host) {
    const KeepClock after(host, Time{5s}, mark);
    return static_cast<int64_t>(until) - static_cast<int64_t>(after.now_s(Time{5s}));
  };
  struct Start {
    int64_t stepped;  // the wall clock, beside the 300 s that passed
    uint64_t boot_s;
    const char* boot;
    int64_t left;
  };
  for (const Start& s : {
           Start{0, 900, "boot", 3200}, Start{7200, 900, "boot", 3200},
           Start{-7200, 900, "boot", 3200}, Start{-1'000'000'000, 900, "boot", 3200},
           Start{7200, 4300, "boot", -200},  // it is over
           Start{-7200, 4300, "boot", -200}, Start{0, 10, "another", 3200},
           Start{3000, 10, "another", 200},    // nobody else knows how long it was off
           Start{-7200, 10, "another", 3500},  // time never goes back
           Start{0, 10, "", 3200},
           Start{0, 10, "boot", 3200},  // that clock went back: it is no witness
       }) {
    CAPTURE(s.stepped);
    CAPTURE(s.boot);
    CHECK(left({static_cast<uint64_t>(static_cast<int64_t>(kWall) + 400 + s.stepped), s.boot_s,
                s.boot}) == s.left);
  }
}

TEST_CASE("a mark of a process whose wall clock was stepped counts from the clock after the step") {
  constexpr uint64_t kWall = 1'700'000'000;
  KeepClock clock({kWall, 500, "boot"}, Time{});
  CHECK(clock.stepped_s(kWall + 7210, Time{} + 10s) == 7200);
  const ClockMark mark = clock.mark({kWall + 7210, 510, "boot"}, Time{} + 10s);
  CHECK(mark.own_s == kWall + 10);
  KeepClock after({kWall + 7310, 20, "another"}, Time{}, mark);
  CHECK(after.now_s(Time{}) == kWall + 110);
  CHECK(after.stepped_s(kWall + 7310, Time{}) == 0);  // not stepped since it began
  CHECK(after.stepped_s(kWall + 120, Time{} + 10s) == -7200);
}

TEST_CASE("a mark of no time is none") {
  const ClockMark mark{UINT64_MAX, {5, 5, "boot"}};
  CHECK(KeepClock({1000, 7, "boot"}, Time{}, mark).now_s(Time{}) == 1000);
  CHECK(KeepClock({1000, 7, "boot"}, Time{}).now_s(Time{}) == 1000);
}

}  // namespace
}  // namespace mc::store
