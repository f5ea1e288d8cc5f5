#include "sim/cluster/calibrate.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "base/random.h"
#include "sim/study/study.h"

namespace calibrate_test {
namespace {

using namespace mc;
using namespace mc::sim;

trace::Trace some_trace() {
  Random random(5);
  trace::Trace t;
  uint64_t next = 1, ms = 0;
  for (int i = 0; i < 120; ++i) {
    ms += random.below(60);
    trace::TraceRequest r;
    r.timestamp_ms = ms;
    if (i > 0 && random.chance(0.5))
      r.hash_ids = t.records[random.below(t.records.size())].hash_ids;
    for (uint64_t k = 1 + random.below(8); k > 0; --k) r.hash_ids.push_back(next++);
    r.input_length = r.hash_ids.size() * 512 - random.below(512);
    r.output_length = 5 + random.below(40);
    t.records.push_back(r);
  }
  return t;
}

SimOptions cluster() {
  SimOptions o;
  o.prefill = o.decode = 2;
  o.overhead = Duration{0};
  return o;
}

trace::PlayOptions quiet_play() {
  trace::PlayOptions play;
  play.arrival = trace::Arrival::kUniform;
  play.qps = 1e-4;
  return play;
}

Run simulated(const cost::ModelSpec& spec, const SimOptions& o, const trace::PlayOptions& play) {
  StudyOptions study;
  study.sim = o;
  study.play = play;
  auto runs = run_study(some_trace(), spec, study);
  REQUIRE_MESSAGE(runs, runs.error().what);
  return std::move(runs->at(0));
}

// As mc-replay run would have written it, had the run been real.
Json live_report(Run run, std::optional<uint64_t> concurrency) {
  run.info.mode = "live";
  run.info.concurrency = concurrency;
  return trace::report_json(run.summary, run.info);
}

// A machine that is slower than the model says, by amounts that are known.
struct Slow {
  cost::ModelSpec spec = cost::tiny();
  SimOptions options = cluster();
  Slow() {
    spec.cost.c0 *= 1.5;
    spec.cost.c1 *= 1.5;
    spec.cost.c2 *= 1.5;
    spec.cost.load_bytes_per_s /= 1.5;
    spec.cost.t0 += 0.001;
    options.overhead = std::chrono::milliseconds(3);
    options.nic_gbps = 4;
    options.load_bytes_per_s = 1e15;
  }
};

LiveRun read(const Json& report) {
  auto run = live_run(report, "live.json");
  REQUIRE_MESSAGE(run, run.error().what);
  return *run;
}

TEST_CASE("times fitted to a quiet run predict a busy run") {
  const Slow slow;
  const LiveRun quiet = read(live_report(simulated(slow.spec, slow.options, quiet_play()), 1));
  const LiveRun busy = read(live_report(simulated(slow.spec, slow.options, {}), std::nullopt));
  CHECK(quiet.concurrency == 1);
  CHECK(busy.prefill == 2);
  CHECK(busy.requests == 120);

  const Means naive = means_of(simulated(cost::tiny(), cluster(), {}).summary);
  CHECK_FALSE(calibrate(busy.means, naive, 0.1).within);

  cost::ModelSpec spec = cost::tiny();
  SimOptions options = cluster();
  const Run plain = simulated(spec, options, quiet_play());
  const auto fit = fit_machine(quiet, means_of(plain.summary), spec);
  REQUIRE_MESSAGE(fit, fit.error().what);
  CHECK(fit->prefill_factor == doctest::Approx(1.5).epsilon(0.01));
  CHECK(fit->overhead_s == doctest::Approx(0.003).epsilon(0.01));
  CHECK(fit->transfer_bytes_per_s == doctest::Approx(5e8).epsilon(0.01));
  CHECK(fit->step_s == doctest::Approx(0.001).epsilon(0.01));

  apply(*fit, spec, options);
  const Calibration c = calibrate(busy.means, means_of(simulated(spec, options, {}).summary), 0.02);
  CHECK_MESSAGE(c.within, calibration_text(c, *fit));
  for (const Comparison& f : c.figures)
    if (f.error) CHECK_MESSAGE(std::abs(*f.error) < 0.02, f.name);
}

TEST_CASE("the parts of a run add up to its time to the first token") {
  const Slow slow;
  const Means m = means_of(simulated(slow.spec, slow.options, {}).summary);
  CHECK(*m.queue_s + *m.prefill_s + *m.transfer_s + *m.first_step_s ==
        doctest::Approx(*m.ttft_s).epsilon(1e-6));
}

TEST_CASE("a promised figure that is unmeasured, or 0 in only one run, fails the calibration") {
  Means live;
  live.ttft_s = 1;
  live.tbt_ms = 10;
  live.hit_ratio = 0.5;
  Means same = live;
  CHECK(calibrate(live, same, 0.1).within);
  same.tbt_ms.reset();
  CHECK_FALSE(calibrate(live, same, 0.1).within);
  same.tbt_ms = 11.2;
  CHECK_FALSE(calibrate(live, same, 0.1).within);
  same.tbt_ms = 10.9;
  CHECK(calibrate(live, same, 0.1).within);
  live.hit_ratio = 0;
  CHECK_FALSE(calibrate(live, same, 0.1).within);
  same.hit_ratio = 0;
  CHECK(calibrate(live, same, 0.1).within);
}

TEST_CASE("reports that cannot be simulated are refused with their file names") {
  const auto said = [](const Json& report) {
    const auto run = live_run(report, "x.json");
    REQUIRE_FALSE(run);
    CHECK(run.error().code == Code::kInvalid);
    return run.error().what;
  };
  const Run run = simulated(cost::tiny(), cluster(), {});
  CHECK(said(trace::report_json(run.summary, run.info)).find("not a live run") !=
        std::string::npos);  // it says sim
  CHECK(said(Json::array({1})).find("x.json") != std::string::npos);
  Json report = live_report(run, std::nullopt);
  for (const Json& bad : {Json(nullptr), Json(-1), Json(2.5), Json("2"), Json(1e300), Json(0)}) {
    report["cluster"]["prefill"] = bad;
    CHECK(said(report).find("cluster.prefill") != std::string::npos);
  }
  report = live_report(run, std::nullopt);
  report["trace"]["arrival"] = "gamma:";
  CHECK(said(report).find("arrival") != std::string::npos);
  report = live_report(run, std::nullopt);
  report["metrics"]["ttft_s"] = nullptr;
  CHECK(said(report).find("no mean TTFT") != std::string::npos);

  Json other = live_report(run, 1);  // another server's: no parts
  other["metrics"]["prefill_s"] = nullptr;
  const auto fit = fit_machine(read(other), means_of(run.summary), cost::tiny());
  REQUIRE_FALSE(fit);
  CHECK(fit.error().what.find("an mc cluster") != std::string::npos);
}

}  // namespace
}  // namespace calibrate_test
