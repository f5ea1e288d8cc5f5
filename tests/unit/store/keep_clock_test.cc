#include "store/node/keep_clock.h"

#include <doctest/doctest.h>

namespace mc::store {
namespace {

using namespace std::chrono_literals;

TEST_CASE("F99: a time to live is what is left of it, whatever a master's clock says") {
  const Time start{1000s};
  for (const int64_t ahead : {0, 3600, -3600, 100'000'000}) {
    CAPTURE(ahead);
    KeepClock clock(1'700'000'000, start);
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
  KeepClock clock(1000, Time{});
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
  KeepClock clock(1000, Time{});
  CHECK(clock.stepped_s(1000, Time{}) == 0);
  CHECK(clock.stepped_s(1010, Time{} + 10s) == 0);
  CHECK(clock.stepped_s(4620, Time{} + 20s) == 3600);
  CHECK(clock.stepped_s(4630, Time{} + 30s) == 0);
  CHECK(clock.stepped_s(1040, Time{} + 40s) == -3600);
  CHECK(clock.stepped_s(1052, Time{} + 50s) == 0);
  CHECK(clock.now_s(Time{} + 50s) == 1050);
}

}  // namespace
}  // namespace mc::store
