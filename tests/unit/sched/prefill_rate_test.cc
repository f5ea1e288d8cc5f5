#include "sched/prefill_rate.h"

#include <doctest/doctest.h>

#include <limits>

using namespace mc::sched;

TEST_CASE("a rate starts at the spec, and finds the fixed part and the factor of an engine") {
  PrefillRate r;
  CHECK(r.predict_ms(50) == 50);
  CHECK(r.predict_ms(50, 1.5) == 75);
  for (int i = 0; i < 10; ++i) {
    r.learn(1000, 2130);
    r.learn(10, 150);
  }
  CHECK(r.predict_ms(10) == doctest::Approx(150).epsilon(0.1));
  CHECK(r.predict_ms(300) == doctest::Approx(730).epsilon(0.1));
  CHECK(r.predict_ms(1000) == doctest::Approx(2130).epsilon(0.05));
  CHECK(r.mean_ms() == doctest::Approx(1140).epsilon(0.1));
  PrefillRate first;  // one answer of a busy machine is not believed at its word
  first.learn(49, 626);
  CHECK(first.predict_ms(49) < 300);
}

TEST_CASE("prompts that all take a few milliseconds tell the fixed part, and not the factor") {
  PrefillRate r;
  for (int i = 0; i < 10; ++i) r.learn(1, 30);
  CHECK(r.predict_ms(1) == doctest::Approx(30).epsilon(0.2));
  CHECK(r.predict_ms(1000) == doctest::Approx(1030).epsilon(0.1));
}

TEST_CASE("an engine hundreds of times as slow as the spec is found out, by short prompts too") {
  PrefillRate r;
  for (int i = 0; i < 20; ++i) {
    const double spec = 1 + i % 5;
    r.learn(spec, 200 + 300 * spec);
  }
  for (const double spec : {1.0, 3.0, 5.0, 20.0})
    CHECK(r.predict_ms(spec) == doctest::Approx(200 + 300 * spec).epsilon(0.2));
}

TEST_CASE("a few answers that are far off change little") {
  PrefillRate r;
  for (int i = 0; i < 40; ++i) {
    const double spec = 20 + 40 * (i % 5);
    r.learn(spec, i % 8 == 3 ? 3000 : 40 + 2 * spec);
  }
  for (const double spec : {20.0, 100.0, 300.0})
    CHECK(r.predict_ms(spec) == doctest::Approx(40 + 2 * spec).epsilon(0.2));
}

TEST_CASE("a rate changes when the engine does, and nonsense changes nothing") {
  PrefillRate r;
  for (int i = 0; i < 50; ++i) r.learn(100, 200);
  CHECK(r.predict_ms(100) == doctest::Approx(200).epsilon(0.02));
  for (int i = 0; i < 30; ++i) r.learn(100, 600);
  CHECK(r.predict_ms(100) == doctest::Approx(600).epsilon(0.1));
  for (int i = 0; i < 60; ++i) r.learn(100, 10);  // it got much faster than the spec
  CHECK(r.predict_ms(100) == doctest::Approx(10).epsilon(0.3));
  const double before = r.predict_ms(70);
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()})
    r.learn(100, bad);
  r.learn(-1, 5);
  CHECK(r.predict_ms(70) == before);
  CHECK(r.seen() == 140);
}
