// What predictions learn from the requests of one conductor.
#include "request_site.h"
#include "sched/request/request_machine.h"

using namespace mc;
using namespace mc::sched;
using namespace mc::sched::test;

namespace request_learning_test {

TEST_CASE("F65: a step is learned for all requests of its batch, also other conductors'") {
  RequestSite s;
  s.join("p0", true);
  FleetWorker& d = s.join("d0", false);
  s.roster.tell_others(d, 31, 31'000);
  const Cost model(cost::tiny());
  const uint64_t r = s.arrive(1000, 0, 200);
  const AttemptRef a = s.prefilling(r);
  s.answer(a, Step::kPrefill);
  for (uint64_t i = 0; i < 100; ++i) {
    s.tokens(a, 1);
    s.handle(TokensComplete{"d0"});
    s.now += from_seconds(model.step_ms(32, 32'000 + i) / 1e3);
  }
  CHECK(s.cost.step_ms(32, 32'000) == doctest::Approx(model.step_ms(32, 32'000)).epsilon(0.03));
  CHECK(s.cost.step_ms(1, 1000) == doctest::Approx(model.step_ms(1, 1000)).epsilon(0.03));
}

TEST_CASE("a transfer is predicted by what its decode worker lacks of prompts, on the mean") {
  RequestSite s;
  FleetWorker& p = s.join("p0", true);
  s.join("d0", false);
  constexpr uint64_t kTokens = 1600;
  const uint64_t whole = kTokens * s.cost.spec().kv_bytes_per_token();
  const double rate = s.cost.transfer_bytes_per_s() / 50;
  const auto serve = [&](uint64_t sent) {
    const uint64_t r = s.arrive(kTokens);
    const AttemptRef a = s.prefilling(r);
    StepAnswered done{.of = a, .step = Step::kPrefill};
    done.times.transfer_ms = 1e3 * static_cast<double>(sent) / rate;
    done.times.kv_bytes = sent;
    s.handle(done);
    s.tokens(a, 1, "length");
    s.now += 60s;
  };
  const double whole_ms = 1e3 * static_cast<double>(whole) / rate;
  REQUIRE(whole_ms > 16);
  for (int i = 0; i < 100; ++i) serve(whole);
  CHECK(s.cost.transfer_ms(kTokens) == doctest::Approx(whole_ms).epsilon(0.05));
  for (int i = 0; i < 100; ++i) serve(whole / 16);
  CHECK(s.cost.transfer_ms(kTokens) == doctest::Approx(whole_ms / 16).epsilon(0.05));
  CHECK(s.cost.transfer_bytes_per_s() == doctest::Approx(rate).epsilon(0.05));
  serve(whole);  // more was sent: its link is no slower
  CHECK(p.congestion.factor(s.now - 60s) < 1.1);
}

}  // namespace request_learning_test
