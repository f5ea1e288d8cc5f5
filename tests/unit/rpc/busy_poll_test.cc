#include "rpc/busy_poll.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace std::chrono_literals;

TEST_SUITE("busy_poll") {
  TEST_CASE("a poll that found nothing halves the next one, and now and then a full one is tried") {
    rpc::AdaptiveSpin spin(40us);
    CHECK(spin.begin() == 40us);
    spin.missed();
    CHECK(spin.begin() == 20us);
    for (int i = 0; i < 5; ++i) spin.missed();
    int full = 0;
    for (int i = 0; i < 320; ++i) {
      const Duration d = spin.begin();
      full += d == 40us;
      CHECK((d == 40us || d == 0us));
      spin.missed();
    }
    CHECK(full == 10);
    spin.hit();
    CHECK(spin.begin() == 40us);
  }

  TEST_CASE("a poll that yields lasts longer, and one that gets the CPU back late backs off") {
    // The first reading is before the yield, the second after.
    struct Away final : Clock {
      explicit Away(Duration d) : away(d) {}
      Time now() const override { return reads++ == 0 ? start : start + away; }
      Duration away;
      Time start{1000s};
      mutable int reads = 0;
    };
    rpc::YieldBackoff backoff;
    CHECK(backoff.begin(60us, Time{1000s}) == 60us);
    CHECK(backoff.yield(Away(150us)) == 150us);
    CHECK(backoff.yield(Away(150us)) == 50us);  // at most 200 us for one poll
    CHECK(backoff.yield(Away(150us)) == 0us);
    CHECK(backoff.begin(60us, Time{1000s}) == 60us);
    CHECK(backoff.yield(Away(3ms)) == 200us);  // others compute here
    Away soon(100us);
    soon.start += 20ms;
    CHECK(backoff.begin(60us, soon.start) == 10us);  // no longer than a sleep would cost them
    CHECK(backoff.begin(5us, soon.start) == 5us);
    CHECK(backoff.yield(soon) == 0us);
    CHECK(soon.reads == 1);  // it did not yield
    Away later(100us);
    later.start += 60ms;
    CHECK(backoff.begin(60us, later.start) == 60us);
    CHECK(backoff.yield(later) == 100us);
  }
}
