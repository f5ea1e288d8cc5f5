#include <cstdio>

#include "base/json.h"
#include "cmd/mc-replay/files.h"
#include "cmd/mc-replay/outputs.h"
#include "cmd/mc-replay/trace_flags.h"
#include "cmd/mc-replay/verbs.h"
#include "io/file.h"
#include "sim/study/study.h"
#include "trace/report/page.h"

namespace mc::replay {
namespace {

struct SimFlags {
  TraceFlags trace;
  std::string model = "llama3-70b", report, requests, timeline;
  uint64_t repeat = 1, threads = 0;
  Duration sample = std::chrono::seconds(10);
  bool gaps = false;
  std::vector<std::string> sweep, require;
  sim::SimOptions sim;

  void describe(OptionList& v) {
    trace.describe(v);
    v("model", model, "JSON file, or the name of one in configs/models");
    v("sweep", sweep,
      "an option and its values, as policy=kvcache,random or pd=6:10,8:8; every "
      "combination is run");
    v("repeat", repeat, "runs of each point, with seeds that follow --seed; gives intervals");
    v("threads", threads,
      "runs of --sweep and --repeat at once; 0: as many as CPUs. Results do not depend on it");
    v("require", require, "gate on the result, as 'effective>=0.95' or 'p99.ttft_s<20'");
    v("report", report,
      "file for the report: .json, .md, or text; of one run .html with charts too");
    v("requests", requests, "file for a JSON line per request");
    v("gaps", gaps, "keep every token gap: for ITL, and with --requests");
    v("timeline", timeline, "file for loads over time (CSV)");
    v("sample", sample, "between lines of --timeline");
    sim.describe(v);
  }
};

struct SimPlan {
  trace::Trace trace;
  cost::ModelSpec spec;
  sim::StudyOptions study;
};

// Options that would do nothing without another.
Result<> check_needed(const SimFlags& o) {
  const SimFlags plain;
  if (o.timeline.empty() && o.sample != plain.sample)
    return fail(Code::kInvalid, "--sample needs --timeline");
  bool is_chunked = o.sim.engine == "chunked";
  for (const std::string& dimension : o.sweep)
    is_chunked = is_chunked || dimension.starts_with("engine=");
  if (!is_chunked && o.sim.chunk_tokens != plain.sim.chunk_tokens)
    return fail(Code::kInvalid,
                "--chunk needs --engine chunked; of prefill nodes it is --chunk-tokens");
  return {};
}

Result<SimPlan> plan_of(const SimFlags& o) {
  for (const std::string& gate : o.require) MC_TRY_(trace::check_gate_syntax(gate));
  MC_TRY_(check_needed(o));
  SimPlan plan;
  plan.study.sim = o.sim;
  plan.study.sim.keep_gaps = o.gaps;
  if (!o.timeline.empty()) {
    if (o.sample.count() <= 0) return fail(Code::kInvalid, "--sample must be above 0");
    plan.study.sim.sample = o.sample;
  }
  plan.study.repeat = o.repeat;
  plan.study.sweep = o.sweep;
  plan.study.threads = o.threads;
  MC_TRY(plan.study.play, o.trace.play());
  MC_TRY_(sim::check_sweep(plan.study));
  const bool single = o.sweep.empty() && o.repeat == 1;
  if (!single && o.report.ends_with(".html"))
    return fail(Code::kInvalid,
                "--report %s: a page is of one run; with --sweep or --repeat give a name in .json, "
                ".md or .txt",
                o.report.c_str());
  if (!single && (!o.requests.empty() || !o.timeline.empty() || !o.require.empty()))
    return fail(Code::kInvalid,
                "--requests, --timeline and --require are of one run: not with --sweep or "
                "--repeat");
  MC_TRY_(check_outputs(
      {{"--report", o.report}, {"--requests", o.requests}, {"--timeline", o.timeline}},
      o.trace.path()));
  MC_TRY(plan.spec, model_of(o.model));
  MC_TRY(plan.trace, o.trace.read("sim", &plan.spec));
  return plan;
}

Result<> write_report(const SimFlags& o, const Json& json, const std::string& text) {
  if (o.report.empty() || o.report.ends_with(".html")) return {};
  return io::write_output(o.report, o.report.ends_with(".json") ? dump_json(json, 2) + "\n"
                                    : o.report.ends_with(".md")
                                        ? "# Simulation report\n\n```\n" + text + "```\n"
                                        : text);
}

Result<int> print(const SimFlags& o, const Context& context, const Json& json,
                  const std::string& text) {
  const std::string out = context.json ? dump_json(json) + "\n" : text;
  std::fputs(out.c_str(), stdout);
  MC_TRY_(write_report(o, json, text));
  return 0;
}

Result<int> print_one(const SimFlags& o, const Context& context, const SimPlan& plan,
                      sim::Run& run) {
  for (const std::string& expr : o.require) {
    MC_TRY(trace::Gate gate, trace::check_gate(run.summary, expr));
    run.summary.gates.push_back(std::move(gate));
  }
  Json json = trace::report_json(run.summary, run.info);
  json["sim"] = sim::sim_json(run.result, run.summary);
  json["options"] = sim::options_json(plan.study.sim);
  const std::string text =
      trace::report_text(run.summary, run.info) + sim::sim_text(run.result, run.summary);
  MC_TRY_(print(o, context, json, text));
  if (o.report.ends_with(".html"))
    MC_TRY_(
        io::write_output(o.report, trace::report_html(run.summary, run.info, run.result.requests,
                                                      sim::sim_text(run.result, run.summary))));
  if (!o.requests.empty()) {
    std::string lines;
    for (const auto& r : run.result.requests) lines += trace::request_line(r, o.gaps);
    MC_TRY_(io::write_output(o.requests, lines));
  }
  if (!o.timeline.empty()) MC_TRY_(io::write_output(o.timeline, sim::timeline_csv(run.result)));
  for (const trace::Gate& gate : run.summary.gates)
    if (!gate.pass) return 5;
  return run.summary.failed > 0 ? 1 : 0;
}

Result<int> simulate(const SimFlags& o, const Context& context) {
  MC_TRY(const SimPlan plan, plan_of(o));
  MC_TRY(auto runs, sim::run_study(plan.trace, plan.spec, plan.study));
  if (runs.size() == 1 && o.sweep.empty()) return print_one(o, context, plan, runs[0]);
  return print(o, context, sim::study_json(runs, plan.study), sim::study_text(runs));
}

}  // namespace

void add_sim(Program& program) {
  program.verb<SimFlags>(
      "sim", "simulate a cluster serving a trace, in virtual time", [](Verb& v, SimFlags& o) {
        v.positional("TRACE", o.trace.positional, "trace file (JSONL)", false);
        v.example(
            "mc-replay sim trace.jsonl --prefill 6 --decode 10 --ttft-slo 30s --tbt-slo 100ms",
            "16 nodes of the paper's model");
        v.example("mc-replay sim trace.jsonl --sweep policy=kvcache,local,count,random",
                  "one row for each policy");
        v.example("mc-replay sim trace.jsonl --sweep pd=6:10,8:8,10:6 --qps 4 --repeat 5",
                  "three splits, five seeds each, with confidence intervals");
        v.exit_status(1, "a request failed, or could not be served at all (longer than any cache)");
        v.exit_status(5, "a --require gate failed");
        v.run_with([&o](Context& c) { return simulate(o, c); });
      });
}

}  // namespace mc::replay
