#include "sim/cluster/calibrate.h"

#include <cstdio>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "cmd/mc-replay/files.h"
#include "cmd/mc-replay/trace_flags.h"
#include "cmd/mc-replay/verbs.h"
#include "io/file.h"
#include "sim/study/study.h"

namespace mc::replay {
namespace {

using ull = unsigned long long;

struct CalibrateFlags {
  std::string live, quiet, trace, window, model = "tiny", report;
  uint64_t limit = 0, block = trace::kBlockTokens;
  double time_scale = 1;
  sim::Tolerances tolerances;
  sim::SimOptions sim;

  CalibrateFlags() { sim.overhead = Duration{0}; }
  void describe(OptionList& v) {
    v("quiet", quiet,
      "report of a run with --concurrency 1; it shows what this machine adds to the model's times");
    v("trace", trace, "the trace of the runs; empty: the path in the report");
    v("limit", limit, "as given to the runs");
    v("window", window, "as given to the runs");
    v("block", block, "tokens of a hash id");
    v("model", model, "JSON file, or the name of one in configs/models");
    v("time-scale", time_scale, "of the workers: multiplies the model's times");
    v("tolerance", tolerances.p50,
      "how far TTFT, TBT and queueing may be off at p50, and the hit ratio");
    v("tolerance-p90", tolerances.p90, "how far TTFT, TBT and queueing may be off at p90");
    v("report", report, "file for the result: .json, or text");
    sim.describe(v);
  }
};

// Takes the run's counts, policy and admission. Errors: kInvalid for counts that contradict them.
Result<> adopt(const sim::LiveRun& run, sim::SimOptions& o) {
  const sim::SimOptions plain;
  if ((o.prefill != plain.prefill && o.prefill != run.prefill) ||
      (o.decode != plain.decode && o.decode != run.decode))
    return fail(
        Code::kInvalid,
        "the run had %llu prefill and %llu decode workers: leave out --prefill and --decode",
        static_cast<ull>(run.prefill), static_cast<ull>(run.decode));
  o.prefill = run.prefill;
  o.decode = run.decode;
  if (!run.policy.empty()) o.policy.policy = run.policy;
  if (!run.admission.empty()) o.admission.admission = run.admission;
  return {};
}

// Applies the workers' --time-scale to the model's times.
void scale(cost::CostModel& c, double by) {
  for (double* seconds : {&c.c0, &c.c1, &c.c2, &c.t0, &c.t1, &c.t2}) *seconds *= by;
  c.load_bytes_per_s /= by;
}

Result<sim::Run> simulate(const trace::Trace& trace, const cost::ModelSpec& spec,
                          const sim::LiveRun& run, const trace::PlayOptions& play,
                          const sim::SimOptions& options) {
  sim::StudyOptions study;
  study.sim = options;
  study.play = play;
  MC_TRY(auto runs, sim::run_study(trace, spec, study));
  if (runs[0].info.trace_requests != run.requests)
    return fail(Code::kInvalid,
                "the run played %llu requests, this trace gives %llu: give the --trace, --limit "
                "and --window of the run",
                static_cast<ull>(run.requests), static_cast<ull>(runs[0].info.trace_requests));
  return std::move(runs[0]);
}

Result<sim::LiveRun> read_run(const std::string& file) {
  MC_TRY(const Json json, read_json_file(file));
  MC_TRY(sim::LiveRun run, sim::live_run(json, file));
  if (run.failed > 0)
    log_warn("replay", "%s: %llu requests failed: its figures leave them out", file.c_str(),
             static_cast<ull>(run.failed));
  return run;
}

// Simulates one request at a time, as in the quiet run: a day apart, so that none waits.
Result<sim::MachineFit> fit(const CalibrateFlags& o, const trace::Trace& trace,
                            const cost::ModelSpec& spec, trace::PlayOptions play) {
  MC_TRY(const sim::LiveRun quiet, read_run(o.quiet));
  if (quiet.concurrency != 1)
    return fail(Code::kInvalid, "%s: not a quiet run: make it with mc-replay run --concurrency 1",
                o.quiet.c_str());
  sim::SimOptions options = o.sim;
  MC_TRY_(adopt(quiet, options));
  options.admission.admission = "none";
  play = sim::one_by_one(quiet, std::move(play));
  MC_TRY(const sim::Run run, simulate(trace, spec, quiet, play, options));
  return sim::fit_machine(quiet, sim::parts_of(run.summary), spec);
}

Result<int> run(const CalibrateFlags& o, const Context& context) {
  if (!(o.tolerances.p50 > 0 && o.tolerances.p90 > 0))
    return fail(Code::kInvalid, "--tolerance and --tolerance-p90 must be above 0");
  if (!(o.time_scale > 0)) return fail(Code::kInvalid, "--time-scale must be above 0");
  MC_TRY(const sim::LiveRun live, read_run(o.live));
  if (live.concurrency > 0)
    return fail(Code::kInvalid,
                "%s: a run with --concurrency has no arrivals to simulate: give it as --quiet, and "
                "one with arrivals first",
                o.live.c_str());
  TraceFlags flags;
  flags.trace = o.trace.empty() ? live.trace_path : o.trace;
  flags.block = o.block;
  MC_TRY(const trace::Trace trace, flags.read("calibrate"));
  trace::PlayOptions play = live.play;
  play.limit = o.limit;
  if (!o.window.empty()) MC_TRY_(trace::parse_window(o.window, play));
  MC_TRY(cost::ModelSpec spec, model_of(o.model));
  scale(spec.cost, o.time_scale);
  sim::SimOptions options = o.sim;
  MC_TRY_(adopt(live, options));

  std::optional<sim::MachineFit> machine;
  if (!o.quiet.empty()) {
    MC_TRY(machine, fit(o, trace, spec, play));
    sim::apply(*machine, spec, options);
  }
  MC_TRY(const sim::Run simulated, simulate(trace, spec, live, play, options));
  const auto c = sim::calibrate(live, sim::parts_of(simulated.summary), o.tolerances);
  const std::string json = dump_json(sim::calibration_json(c, machine)) + "\n";
  const std::string text = sim::calibration_text(c, machine);
  std::fputs((context.json ? json : text).c_str(), stdout);
  if (!o.report.empty())
    MC_TRY_(io::write_output(o.report, o.report.ends_with(".json") ? json : text));
  switch (c.verdict) {
    case sim::Agreement::kHeld: return 0;
    case sim::Agreement::kUnmeasured: return 6;
    default: return 5;
  }
}

}  // namespace

void add_calibrate(Program& program) {
  program.verb<CalibrateFlags>(
      "calibrate", "compare a live run with its own simulation, part by part",
      [](Verb& v, CalibrateFlags& o) {
        v.positional("LIVE", o.live, "report of mc-replay run (JSON)");
        v.example("mc-replay calibrate live.json --quiet quiet.json",
                  "quiet.json: the same trace, run before with --concurrency 1");
        v.exit_status(5, "TTFT, TBT, queueing or the hit ratio is off by more than allowed");
        v.exit_status(6, "one is off, but the machine ran the live run's threads too late to tell");
        v.run_with([&o](Context& c) { return run(o, c); });
      });
}

}  // namespace mc::replay
