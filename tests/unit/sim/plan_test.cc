#include "sim/study/plan.h"

#include <doctest/doctest.h>

#include <set>

#include "base/json.h"
#include "sim/study/compare.h"
#include "sim/study/parallel.h"
#include "trace/play/reshape.h"

namespace mc::sim {
namespace {

using namespace std::chrono_literals;

trace::Trace fixed_trace(uint64_t requests, double qps) {
  trace::Trace t;
  t.name = "fixed";
  t.records = *trace::fixed(
      {.requests = requests, .input = 8000, .output = 30, .shared_tokens = 4096, .qps = qps});
  return t;
}

cost::ModelSpec tiny_model() { return cost::tiny(); }

PlanOptions planning(uint64_t nodes) {
  PlanOptions o;
  o.nodes = nodes;
  o.study.sim.admission.ttft_slo = 1s;
  o.study.threads = 2;
  o.cache_tokens = {10'000, 100'000};
  o.nic_gbps = {10, 100};
  return o;
}

TEST_CASE("each piece of parallel work is done once, on one thread or many") {
  for (const size_t threads : {1u, 2u, 7u, 0u}) {
    std::vector<int> done(100);
    in_parallel(done.size(), threads, [&](size_t i) { ++done[i]; });
    CHECK(done == std::vector<int>(100, 1));
  }
  in_parallel(0, 4, [](size_t) { CHECK(false); });
}

TEST_CASE("the number of threads changes no byte of a study") {
  const trace::Trace t = fixed_trace(40, 4);
  StudyOptions o;
  o.sim.prefill = o.sim.decode = 2;
  o.sweep = {"policy=kvcache,random,count", "pd=1:3,3:1"};
  o.repeat = 2;
  std::set<std::string> texts;
  for (const uint64_t threads : {1u, 2u, 5u}) {
    o.threads = threads;
    const auto runs = run_study(t, tiny_model(), o);
    REQUIRE(runs);
    texts.insert(dump_json(study_json(*runs, o)));
  }
  CHECK(texts.size() == 1);
}

TEST_CASE("a plan takes the smallest cache and the slowest network that keep the promises") {
  const trace::Trace t = fixed_trace(40, 1);
  const auto planned = plan(t, tiny_model(), planning(4));
  REQUIRE(planned);
  CHECK(planned->met);
  CHECK(planned->prefill + planned->decode == 4);
  CHECK(planned->cache_tokens == 10'000);
  CHECK(planned->nic_gbps == 10);
  REQUIRE(planned->curves.size() == 3);
  CHECK(planned->curves[0].points.size() == 3);  // 1:3, 2:2, 3:1
  const Json json = plan_json(*planned, planning(4));
  CHECK(json["met"] == true);
  CHECK(plan_text(*planned, planning(4)).find("keep their promises") != std::string::npos);
}

TEST_CASE("a plan for many nodes refines around the best split, and repeats none") {
  const trace::Trace t = fixed_trace(30, 8);
  const auto planned = plan(t, tiny_model(), planning(64));
  REQUIRE(planned);
  std::set<std::string> settings;
  for (const PlanPoint& p : planned->curves[0].points) settings.insert(p.setting[0].second);
  CHECK(settings.size() == planned->curves[0].points.size());
  CHECK(settings.size() > 15);
  CHECK(settings.size() < 40);
}

TEST_CASE("a plan says so when a promise cannot be kept") {
  PlanOptions o = planning(2);
  o.study.sim.admission.ttft_slo = 1ms;  // less than the overhead alone
  const auto planned = plan(fixed_trace(20, 4), tiny_model(), o);
  REQUIRE(planned);
  CHECK(!planned->met);
  CHECK(plan_text(*planned, o).find("short of the target") != std::string::npos);
}

TEST_CASE("invalid plans are refused") {
  const trace::Trace t = fixed_trace(5, 4);
  PlanOptions o = planning(1);
  CHECK(!plan(t, tiny_model(), o));
  o = planning(4);
  o.study.sim.admission.ttft_slo = 0s;
  CHECK(!plan(t, tiny_model(), o));
  o = planning(4);
  o.target = 0;
  CHECK(!plan(t, tiny_model(), o));
  o = planning(4);
  o.nic_gbps = {-1};
  CHECK(!plan(t, tiny_model(), o));
  o = planning(4);
  o.cache_tokens.clear();
  CHECK(!plan(t, tiny_model(), o));
}

// ---- compare

Json studied(double qps, uint64_t repeat) {
  StudyOptions o;
  o.sim.prefill = o.sim.decode = 1;
  o.play.qps = qps;
  o.repeat = repeat;
  o.sweep = {"policy=kvcache"};
  const auto runs = run_study(fixed_trace(40, 1), tiny_model(), o);
  REQUIRE(runs);
  return study_json(*runs, o);
}

TEST_CASE("a result compared with itself is the same, by a ratio of one") {
  const Json a = studied(2, 3);
  auto both = results_of(a, "a.json");
  REQUIRE(both);
  both->push_back(both->front());
  const Json json = comparison_json(*both);
  for (const Json& row : json["figures"]) {
    const Json& other = row["values"][1];
    if (other.is_null()) continue;
    CHECK(other["verdict"] == "same");
    if (!other["ratio"].is_null()) CHECK(other["ratio"].get<double>() == doctest::Approx(1));
  }
}

TEST_CASE("results differ where their intervals do not overlap; single runs have none") {
  const Interval low{1, .1, 3}, near{1.15, .1, 3}, high{2, .1, 3}, single{2, 0, 1};
  CHECK(difference(low, near) == Difference::kSame);
  CHECK(difference(low, high) == Difference::kDiffers);
  CHECK(difference(low, single) == Difference::kUnknown);
  CHECK(difference(low, std::nullopt) == Difference::kUnknown);
}

TEST_CASE("each point of a study is a result, and other files are refused with their names") {
  const auto results = results_of(studied(2, 1), "s.json");
  REQUIRE(results);
  REQUIRE(results->size() == 1);
  CHECK(results->front().label == "s.json policy=kvcache");
  CHECK(results->front().mode == "sim");
  for (const char* text :
       {"3", "[]", "{}", R"({"schema": "mc-replay-study/1", "points": [{"runs": [1]}]})",
        R"({"schema": "mc-replay-study/1", "points": []})", R"({"schema": 3})"}) {
    const auto bad = results_of(*parse_json(text), "bad.json");
    REQUIRE(!bad);
    CHECK(bad.error().what.find("bad.json") != std::string::npos);
  }
}

}  // namespace
}  // namespace mc::sim
