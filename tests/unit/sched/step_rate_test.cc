#include "sched/step_rate.h"

#include <doctest/doctest.h>

#include "base/random.h"
#include "sched/cost.h"

using namespace mc;
using namespace mc::sched;
using namespace std::chrono_literals;

namespace step_rate_test {

namespace {

cost::CostModel model() {
  cost::CostModel m;
  m.t0 = 0.02;
  m.t1 = 0.001;
  m.t2 = 1e-7;
  return m;
}

double truth(double batch, double context, double f0, double f1, double f2) {
  const cost::CostModel m = model();
  return 1e3 * (f0 * m.t0 + f1 * m.t1 * (batch - 1) + f2 * m.t2 * context);
}

}  // namespace

TEST_CASE("F65: an engine twice as slow as its spec is predicted within 10 % after 50 steps") {
  Cost cost(cost::tiny());
  const double alone = cost.step_ms(1, 1000), many = cost.step_ms(32, 100'000);
  for (int i = 0; i < 50; ++i)
    cost.learn_step(
        1 + i % 4, 1000 + 10 * i,
        2 * Cost(cost::tiny())
                .step_ms(1 + static_cast<uint64_t>(i) % 4, 1000 + 10 * static_cast<uint64_t>(i)));
  CHECK(cost.step_ms(1, 1000) == doctest::Approx(2 * alone).epsilon(0.1));
  CHECK(cost.step_ms(32, 100'000) == doctest::Approx(2 * many).epsilon(0.1));
}

TEST_CASE("steps are learned by batch and by context") {
  StepRate rate(model());
  CHECK(rate.version() == 0);
  CHECK(rate.predict_ms(4, 1000) == doctest::Approx(truth(4, 1000, 1, 1, 1)));
  CHECK(rate.predict_ms(0, 0) == 0);
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const double batch = 1 + static_cast<double>(random.below(32));
    const double context = batch * static_cast<double>(1000 + random.below(50'000));
    const double noise = 0.95 + 0.1 * random.uniform();
    rate.learn(batch, context, noise * truth(batch, context, 1.5, 3, 0.5));
  }
  for (const auto& [batch, context] : {std::pair{1., 1e3}, {32., 3e4}, {8., 4e5}})
    CHECK(rate.predict_ms(batch, context) ==
          doctest::Approx(truth(batch, context, 1.5, 3, 0.5)).epsilon(0.1));
}

TEST_CASE("one step that stood still, and what is no time, change little") {
  StepRate rate(model());
  for (int i = 0; i < 50; ++i) rate.learn(2, 2000, truth(2, 2000, 1, 1, 1));
  CHECK(rate.version() == 0);  // nothing changed, so nothing that is sorted by it does
  rate.learn(2, 2000, 10'000);
  rate.learn(2, 2000, -1);
  rate.learn(2, 2000, 0);
  rate.learn(0, 0, std::numeric_limits<double>::infinity());
  CHECK(rate.predict_ms(2, 2000) == doctest::Approx(truth(2, 2000, 1, 1, 1)).epsilon(0.25));
  for (int i = 0; i < 200; ++i) rate.learn(2, 2000, truth(2, 2000, 3, 3, 3));  // a trend
  CHECK(rate.predict_ms(2, 2000) == doctest::Approx(truth(2, 2000, 3, 3, 3)).epsilon(0.1));
}

TEST_CASE("a step is the time between two batches with tokens of one request") {
  StepWatch watch;
  const Time start{1s};
  watch.saw(1, true, 1, 100);
  CHECK(!watch.end(start));  // nothing before it
  watch.saw(1, false, 1, 101);
  watch.saw(2, true, 1, 50);
  const auto step = watch.end(start + 20ms);
  REQUIRE(step);
  CHECK(step->batch == 2);
  CHECK(step->context == 151);
  CHECK(step->ms == doctest::Approx(20));
  watch.saw(3, true, 1, 10);
  CHECK(!watch.end(start + 10s));  // it may have been idle
  watch.saw(3, false, 2, 12);
  CHECK(!watch.end(start + 11s));  // of two steps
  watch.saw(3, false, 1, 13);
  watch.saw(3, false, 1, 14);
  CHECK(!watch.end(start + 12s));
  CHECK(!watch.end(start + 13s));
}

TEST_CASE("F66: what the first token takes beyond its step is learned") {
  Cost cost(cost::tiny());
  CHECK(cost.first_step_ms(25) == 25);
  for (int i = 0; i < 60; ++i) cost.learn_first_step(25, 40);
  CHECK(cost.first_step_ms(25) == doctest::Approx(40).epsilon(0.02));
  cost.learn_first_step(25, 1e9);
  CHECK(cost.first_step_ms(25) < 80);
}

}  // namespace step_rate_test
