#include "sched/prefill_rate.h"

#include <doctest/doctest.h>

#include <limits>

using namespace mc::sched;

TEST_CASE("a rate starts at the spec and follows what is measured, by the long prompts most") {
  PrefillRate r;
  CHECK(r.factor() == 1);
  CHECK(r.factor(1.5) == 1.5);
  for (int i = 0; i < 10; ++i) {
    r.learn(1000, 2000);
    r.learn(10, 150);  // mostly something else than prefill
  }
  CHECK(r.factor() == doctest::Approx(2).epsilon(0.05));
  CHECK(r.mean_ms() == doctest::Approx(1075).epsilon(0.1));
  PrefillRate first;  // one answer of a busy machine is not believed at its word
  first.learn(49, 626);
  CHECK(first.factor() < 6);
  PrefillRate quick;
  for (int i = 0; i < 10; ++i) quick.learn(1, 30);  // a few milliseconds prove nothing
  CHECK(quick.factor() == 1);
}

TEST_CASE("a rate changes when the engine does, and nonsense changes nothing") {
  PrefillRate r;
  for (int i = 0; i < 50; ++i) r.learn(100, 200);
  CHECK(r.factor() == doctest::Approx(2).epsilon(0.02));
  for (int i = 0; i < 30; ++i) r.learn(100, 600);
  CHECK(r.factor() == doctest::Approx(6).epsilon(0.1));
  const double before = r.factor();
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()})
    r.learn(100, bad);
  r.learn(-1, 5);
  CHECK(r.factor() == before);
  CHECK(r.seen() == 80);
}
