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

  const Parts naive = parts_of(simulated(cost::tiny(), cluster(), {}).summary);
  CHECK(calibrate(busy, naive, {}).verdict == Agreement::kOver);

  cost::ModelSpec spec = cost::tiny();
  SimOptions options = cluster();
  const Run plain = simulated(spec, options, quiet_play());
  const auto fit = fit_machine(quiet, parts_of(plain.summary), spec);
  REQUIRE_MESSAGE(fit, fit.error().what);
  CHECK(fit->prefill_factor == doctest::Approx(1.5).epsilon(0.01));
  CHECK(fit->overhead_s == doctest::Approx(0.003).epsilon(0.01));
  CHECK(fit->transfer_bytes_per_s == doctest::Approx(5e8).epsilon(0.01));
  CHECK(fit->step_s == doctest::Approx(0.001).epsilon(0.01));

  apply(*fit, spec, options);
  const Calibration c =
      calibrate(busy, parts_of(simulated(spec, options, {}).summary), {0.03, 0.03});
  CHECK_MESSAGE(c.verdict == Agreement::kHeld, calibration_text(c, *fit));
  for (const Comparison& f : c.figures)
    if (f.error && f.of == "mean") CHECK_MESSAGE(std::abs(*f.error) < 0.03, f.name);
}

TEST_CASE("the parts of a run add up to its time to the first token") {
  const Slow slow;
  const Parts m = parts_of(simulated(slow.spec, slow.options, {}).summary);
  CHECK(m.queue_s->mean + m.prefill_s->mean + m.transfer_s->mean + m.first_step_s->mean ==
        doctest::Approx(m.ttft_s->mean).epsilon(1e-6));
}

// A live run whose figures are all the same, and its simulation.
struct Pair {
  LiveRun live;
  Parts simulated;
  Pair() {
    live.parts.ttft_s = live.parts.queue_s = Spread{1, 1, 2};
    live.parts.tbt_ms = Spread{10, 10, 20};
    live.parts.hit_ratio = 0.5;
    simulated = live.parts;
  }
  Calibration compared() const { return calibrate(live, simulated, {}); }
  Agreement verdict() const { return compared().verdict; }
};

TEST_CASE("what is promised is within 10 % at p50 and 15 % at p90, and what is not is named") {
  Pair p;
  CHECK(p.verdict() == Agreement::kHeld);
  p.simulated.ttft_s = Spread{9, 1.09, 2.28};  // nothing is promised of the mean
  CHECK(p.verdict() == Agreement::kHeld);
  p.simulated.ttft_s->p90 = 2.32;
  CHECK(p.verdict() == Agreement::kOver);
  CHECK(calibration_text(p.compared(), std::nullopt)
            .find("DISAGREES: over what is promised: ttft_s p90 (+16.0 %)\n") != std::string::npos);
  p = {};
  p.simulated.queue_s->p50 = 0.89;
  CHECK(p.verdict() == Agreement::kOver);
  p = {};
  p.simulated.tbt_ms->p50 = 11.2;
  CHECK(p.verdict() == Agreement::kOver);
  p = {};
  p.simulated.tbt_ms.reset();
  CHECK(p.verdict() == Agreement::kOver);
  CHECK(calibration_json(p.compared(), std::nullopt)["why"] ==
        "DISAGREES: over what is promised: tbt_ms (absent in one run)");
  p = {};
  p.live.parts.hit_ratio = 0;
  CHECK(p.verdict() == Agreement::kOver);
  p.simulated.hit_ratio = 0;
  CHECK(p.verdict() == Agreement::kHeld);
}

TEST_CASE("on a machine that runs threads late an error proves nothing, and is no success") {
  Pair p;
  p.simulated.tbt_ms->p50 = 11.5;  // 1.5 ms off
  p.live.late = Lateness{0.0002, 1};
  CHECK(p.verdict() == Agreement::kOver);  // a fifth of a millisecond explains little of it
  p.live.late = Lateness{0.0005, 1};
  CHECK(p.verdict() == Agreement::kUnmeasured);
  CHECK(calibration_text(p.compared(), std::nullopt).find("NOT MEASURED") != std::string::npos);
  // Late threads hide nothing that is off by more, and no hits.
  p.simulated.ttft_s->p50 = 1.2;
  CHECK(p.verdict() == Agreement::kOver);
  p = {};
  p.live.late = Lateness{10, 10};
  CHECK(p.verdict() == Agreement::kHeld);
  p.simulated.hit_ratio = 0.6;
  CHECK(p.verdict() == Agreement::kOver);
}

TEST_CASE("a quiet run of any number of requests is played") {
  trace::Trace t = some_trace();
  t.records.resize(1);
  t.records.resize(100'000, t.records[0]);
  LiveRun quiet;
  for (const size_t n : {1u, 11'574u, 100'000u}) {
    quiet.requests = n;
    trace::PlayOptions play = one_by_one(quiet, {.speed = 4});
    play.limit = n;
    const auto played = trace::schedule(t, play);
    REQUIRE_MESSAGE(played, played.error().what);
    CHECK(played->size() == n);
    if (n > 1) CHECK(played->at(1).due >= std::chrono::hours(1));
  }
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
  report["interrupted"] = true;
  CHECK(said(report).find("stopped by a signal") != std::string::npos);
  report = live_report(run, std::nullopt);
  report["metrics"]["ttft_s"] = nullptr;
  CHECK(said(report).find("no TTFT") != std::string::npos);

  Json other = live_report(run, 1);  // another server's: no parts
  other["metrics"]["prefill_s"] = nullptr;
  const auto fit = fit_machine(read(other), parts_of(run.summary), cost::tiny());
  REQUIRE_FALSE(fit);
  CHECK(fit.error().what.find("an mc cluster") != std::string::npos);
}

}  // namespace
}  // namespace calibrate_test
