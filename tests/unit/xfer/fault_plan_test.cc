#include <doctest/doctest.h>

#include "xfer/transports/fault/fault_plan.h"

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::fault;
using namespace std::chrono_literals;

namespace {

constexpr Time kStart{1000s};

Plan plan_of(const std::string& script, uint64_t seed = 1) {
  auto plan = Plan::parse(script, "drill");
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().what));
  plan->start(kStart, seed);
  return *plan;
}

const Traffic kRead{"tcp", "node-b", Op::kRead, 1'000'000};

}  // namespace

TEST_SUITE("xfer/fault") {
  TEST_CASE("a rule works in its time and on what it names, and on nothing else") {
    Plan plan = plan_of(
        R"({"at": "2s", "for": "500ms", "peer": "node-b", "op": "read", "error": "submit"})");
    CHECK(plan.decide(kRead, kStart).action == FaultAction::kPass);
    CHECK(plan.decide(kRead, kStart + 1999ms).action == FaultAction::kPass);
    CHECK(plan.decide(kRead, kStart + 2s).action == FaultAction::kFailSubmit);
    CHECK(plan.decide(kRead, kStart + 2499ms).action == FaultAction::kFailSubmit);
    CHECK(plan.decide(kRead, kStart + 2500ms).action == FaultAction::kPass);
    CHECK(plan.decide({"tcp", "node-c", Op::kRead, 1}, kStart + 2s).action == FaultAction::kPass);
    CHECK(plan.decide({"tcp", "node-b", Op::kWrite, 1}, kStart + 2s).action == FaultAction::kPass);
    Plan shm = plan_of(R"({"transport": "shm", "drop": true})");
    CHECK(shm.decide(kRead, kStart).action == FaultAction::kPass);
    CHECK(shm.decide({"shm", "x", Op::kRead, 1}, kStart + 1h).action == FaultAction::kDrop);
    Plan stop = plan_of(R"({"op": "write", "stop": true})");
    CHECK(stop.decide(kRead, kStart).action == FaultAction::kPass);
    CHECK(stop.decide({"shm", "x", Op::kWrite, 1}, kStart).action == FaultAction::kStop);
  }

  TEST_CASE("a cap spreads slices out so that its bandwidth is met and never passed") {
    Plan plan = plan_of(R"({"bandwidth": "1000000"})");
    CHECK(plan.decide(kRead, kStart).release == kStart + 1s);
    CHECK(plan.decide(kRead, kStart).release == kStart + 2s);
    CHECK(plan.decide(kRead, kStart + 1500ms).release == kStart + 3s);
    CHECK(plan.decide(kRead, kStart + 10s).release == kStart + 11s);  // idle time is not saved up
  }

  TEST_CASE("skip and count take exactly those slices") {
    Plan plan = plan_of(R"({"skip": 2, "count": 3, "error": "completion"})");
    std::string fates;
    for (int i = 0; i < 8; ++i)
      fates += plan.decide(kRead, kStart).action == FaultAction::kFailCompletion ? 'x' : '.';
    CHECK(fates == "..xxx...");
  }

  TEST_CASE("rules add up: the longest delay, the first fate") {
    Plan plan = plan_of(
        "// two rules\n\n{\"delay\": \"5ms\", \"jitter\": \"1ms\", \"drop\": true}\n"
        "{\"delay\": \"20ms\", \"error\": \"submit\"}\n");
    CHECK(plan.rules() == 2);
    const Verdict v = plan.decide(kRead, kStart);
    CHECK(v.release == kStart + 20ms);
    CHECK(v.action == FaultAction::kDrop);
  }

  TEST_CASE("the same seed gives the same drill, and a share is that share") {
    const std::string script = R"({"share": 0.3, "error": "submit", "jitter": "1ms"})";
    Plan a = plan_of(script, 7), b = plan_of(script, 7);
    int failed = 0;
    for (int i = 0; i < 2000; ++i) {
      const Verdict x = a.decide(kRead, kStart), y = b.decide(kRead, kStart);
      CHECK(x.action == y.action);
      CHECK(x.release == y.release);
      CHECK(x.release < kStart + 1ms);
      failed += x.action == FaultAction::kFailSubmit;
    }
    CHECK(failed > 500);
    CHECK(failed < 700);
  }

  TEST_CASE("a script that is wrong is refused with its line, and what would be right") {
    const auto refused = [](const char* script, const char* text) {
      const auto plan = Plan::parse(script, "drill");
      REQUIRE_FALSE(plan.has_value());
      CHECK(plan.error().code == Code::kInvalid);
      CHECK_MESSAGE(plan.error().what.find(text) != std::string::npos, plan.error().what);
    };
    refused("{\"delay\": \"5ms\"}\n{\"dela\": \"5ms\"}", "line 2");
    refused("{\"dela\": \"5ms\"}", "delay");
    refused("{\"share\": 1.5}", "between 0 and 1");
    refused("{\"delay\": 5}", "delay");
    refused("{\"error\": \"later\"}", "error");
    refused("{\"transport\": \"warp\", \"drop\": true}", "transport");
    refused("{\"drop\": true, \"error\": \"submit\"}", "one of them");
    refused("{\"drop\": true, \"stop\": true}", "one of them");
    refused("{\"drop\": true", "line 1");
    refused("[]", "line 1");
  }
}
