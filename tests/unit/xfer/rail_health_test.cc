#include "xfer/rails/rail_health.h"

#include <doctest/doctest.h>

namespace mc::xfer {
namespace {
Time at(double seconds) { return Time{} + Duration(static_cast<int64_t>(seconds * 1e9)); }

// Trips it at `when` by as many errors as it takes.
void trip(RailHealth& h, double when) {
  while (h.state(at(when)) != RailState::kResting) h.failed(at(when));
}
// As many good probes as it takes; the time it was healthy again.
double heal(RailHealth& h, int* probes = nullptr) {
  const Time wakes = h.wakes();
  int n = 0;
  for (; h.state(wakes) == RailState::kProbing && n < 1000; ++n) h.succeeded(wakes);
  if (probes != nullptr) *probes = n;
  return static_cast<double>((wakes - Time{}).count()) / 1e9;
}
}  // namespace

TEST_SUITE("health") {
  TEST_CASE("three errors within the window trip a rail; spread wider they do not") {
    RailHealth h;
    h.failed(at(1));
    CHECK(h.state(at(1)) == RailState::kSuspect);
    h.failed(at(2));
    h.failed(at(3));
    CHECK(h.state(at(3)) == RailState::kResting);
    CHECK(!h.usable(at(3), 0));
    RailHealth wide;
    for (double t : {1., 7., 13., 19., 25.}) wide.failed(at(t));
    CHECK(wide.state(at(25)) == RailState::kSuspect);
    CHECK(wide.state(at(40)) == RailState::kHealthy);
  }

  TEST_CASE("successes between errors do not wipe them") {
    RailHealth h;
    for (int i = 0; i < 3; ++i) {
      CHECK(h.state(at(i)) != RailState::kResting);
      for (int k = 0; k < 50; ++k) h.succeeded(at(i));
      h.failed(at(i + .5));
    }
    CHECK(h.state(at(2.6)) == RailState::kResting);
  }

  TEST_CASE("a ratio of losses trips it, however slowly they come") {
    RailHealth h({.errors_max = 1000});
    double t = 0;
    for (int i = 0; i < 200 && h.state(at(t)) != RailState::kResting; ++i) {
      t += 60;  // far beyond the window of errors
      if (i % 5 == 0)
        h.failed(at(t));
      else
        h.succeeded(at(t));
    }
    CHECK(h.state(at(t)) == RailState::kResting);
    RailHealth mild({.errors_max = 1000});
    for (int i = 0; i < 200; ++i)
      i % 10 == 0 ? mild.failed(at(i * 60)) : mild.succeeded(at(i * 60));
    CHECK(mild.state(at(12000)) != RailState::kResting);
  }

  TEST_CASE("a rail that stays dead is probed at a steady pace") {
    RailHealth h;
    trip(h, 1);
    for (int i = 0; i < 10; ++i) {
      const Time wakes = h.wakes();
      CHECK(wakes - at(1 + .25 * i) == std::chrono::milliseconds(250));
      CHECK(h.state(wakes) == RailState::kProbing);
      CHECK(h.usable(wakes, 0));
      CHECK(!h.usable(wakes, 1));
      h.failed(wakes);
    }
    CHECK(h.relapses() == 1);
  }

  TEST_CASE("each relapse doubles the rest, up to a limit; good service lets it decay") {
    RailHealth h;
    double t = 1;
    Duration last{};
    for (int i = 0; i < 12; ++i) {
      trip(h, t);
      const Duration rest = h.wakes() - at(t);
      CHECK(rest == std::min<Duration>(std::chrono::milliseconds(250) * (1 << i),
                                       std::chrono::seconds(30)));
      last = rest;
      t = heal(h) + 1;
    }
    CHECK(last == std::chrono::seconds(30));
    CHECK(h.state(at(t + 1000)) == RailState::kHealthy);
    CHECK(h.relapses() == 0);
    trip(h, t + 1001);
    CHECK(h.wakes() - at(t + 1001) == std::chrono::milliseconds(250));
  }

  TEST_CASE("each relapse doubles the probes it takes to heal, sixteen times at most") {
    RailHealth h;
    double t = 1;
    for (const int want : {2, 4, 8, 16, 32, 32, 32}) {
      trip(h, t);
      int probes = 0;
      t = heal(h, &probes) + 1;
      CHECK(probes == want);
    }
  }

  TEST_CASE("one good probe does not heal, and the errors stay in mind after two") {
    RailHealth h;
    trip(h, 1);
    h.succeeded(h.wakes());
    CHECK(h.state(at(1.25)) == RailState::kProbing);
    h.succeeded(at(1.25));
    CHECK(h.state(at(1.25)) == RailState::kHealthy);
    h.failed(at(1.3));  // the fourth within ten seconds
    CHECK(h.state(at(1.3)) == RailState::kResting);
  }

  TEST_CASE("known dead rests at once, known back is probed at once") {
    RailHealth h;
    h.down(at(1));
    CHECK(h.state(at(1)) == RailState::kResting);
    h.up(at(1.01));
    CHECK(h.state(at(1.01)) == RailState::kProbing);
  }

  TEST_CASE("far below its peers is slow, well above that is healthy, without any error") {
    RailHealth h;
    h.compare(.05, at(1));
    CHECK(h.state(at(1)) == RailState::kSlow);
    CHECK(h.usable(at(1), 5));
    h.compare(.15, at(2));
    CHECK(h.state(at(2)) == RailState::kSlow);
    h.compare(.5, at(3));
    CHECK(h.state(at(3)) == RailState::kHealthy);
  }
}

}  // namespace mc::xfer
