#include "sim/study/plan.h"

#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "cmd/mc-replay/files.h"
#include "cmd/mc-replay/trace_flags.h"
#include "cmd/mc-replay/verbs.h"
#include "io/file.h"
#include "trace/analyze/analysis.h"
#include "trace/synth/synth.h"

namespace mc::replay {
namespace {

struct PlanFlags {
  TraceFlags trace;
  std::string profile, model = "llama3-70b", report;
  uint64_t nodes = 16, requests = 0, threads = 0;
  double target = 0.95;
  Duration ttft_slo{}, tbt_slo{};
  std::string policy = "kvcache", admission = "none";
  std::vector<std::string> caches{"100k", "300k", "1M", "3M", "10M"};
  std::vector<std::string> nics{"25", "50", "100", "200", "400", "800"};

  void describe(OptionList& v) {
    trace.describe(v);
    v("profile", profile, "instead of a trace: one made from this profile");
    v("requests", requests, "of --profile; 0: as many as it says");
    v("model", model, "JSON file, or the name of one in configs/models");
    v("nodes", nodes, "prefill and decode nodes together");
    v("ttft-slo", ttft_slo, "promise for the time to the first token; 0s: none");
    v("tbt-slo", tbt_slo, "promise for the mean of the longest 10 % of token gaps; 0s: none");
    v("target", target, "share of requests that keep their promises");
    v("policy", policy, "how prefill nodes are chosen, as of sim");
    v("admission", admission, "what is refused, as of sim");
    v("caches", caches, "tokens that a prefill node caches: the sizes to choose from");
    v("nics", nics, "Gbit/s of a node's NIC: the rates to choose from");
    v("threads", threads, "simulations at once; 0: as many as CPUs");
    v("report", report, "file for the plan: .json, .md, or text");
  }
};

Result<trace::Trace> workload(const PlanFlags& o, const cost::ModelSpec& spec) {
  if (o.profile.empty()) return o.trace.read("plan", &spec);
  if (!o.trace.path().empty())
    return fail(Code::kInvalid, "give a trace or --profile, not both: a plan is for one workload");
  MC_TRY(const std::string file, find_config("profile", o.profile));
  MC_TRY(const Json json, read_json_file(file));
  trace::Trace out;
  out.name = o.profile;
  MC_TRY(out.records, trace::synthesize(json, file, {o.trace.seed, o.requests}));
  const size_t longer = std::erase_if(
      out.records, [&](const trace::TraceRequest& r) { return r.input_length > spec.context_max; });
  if (longer > 0)
    log_warn("replay", "%s: left out %zu prompts longer than the context of %s (%llu tokens)",
             file.c_str(), longer, spec.name.c_str(),
             static_cast<unsigned long long>(spec.context_max));
  return out;
}

Result<sim::PlanOptions> asked(const PlanFlags& o) {
  sim::PlanOptions out;
  MC_TRY(out.study.play, o.trace.play());
  out.study.threads = o.threads;
  out.study.sim.policy.policy = o.policy;
  out.study.sim.admission.admission = o.admission;
  out.study.sim.admission.ttft_slo = o.ttft_slo;
  out.study.sim.admission.tbt_slo = o.tbt_slo;
  out.nodes = o.nodes;
  out.target = o.target;
  out.cache_tokens.clear();
  out.nic_gbps.clear();
  for (const std::string& text : o.caches) {
    MC_TRY(const uint64_t tokens, trace::parse_tokens(text));
    out.cache_tokens.push_back(tokens);
  }
  for (const std::string& text : o.nics) {
    const auto rate = parse_number(text);
    if (!rate) return fail(Code::kInvalid, "--nics %s: want Gbit/s", escape(text).c_str());
    out.nic_gbps.push_back(*rate);
  }
  return out;
}

Result<int> plan(const PlanFlags& o, const Context& context) {
  MC_TRY(const sim::PlanOptions options, asked(o));
  MC_TRY(const cost::ModelSpec spec, model_of(o.model));
  MC_TRY(const trace::Trace trace, workload(o, spec));
  MC_TRY(const sim::Planned planned, sim::plan(trace, spec, options));
  const Json json = sim::plan_json(planned, options);
  const std::string text = sim::plan_text(planned, options);
  std::fputs(context.json ? (dump_json(json) + "\n").c_str() : text.c_str(), stdout);
  if (!o.report.empty())
    MC_TRY_(io::write_output(o.report, o.report.ends_with(".json") ? dump_json(json, 2) + "\n"
                                       : o.report.ends_with(".md")
                                           ? "# Plan\n\n```\n" + text + "```\n"
                                           : text));
  return planned.met ? 0 : 5;
}

}  // namespace

void add_plan(Program& program) {
  program.verb<PlanFlags>(
      "plan", "find the split, cache and network that a workload needs", [](Verb& v, PlanFlags& o) {
        v.positional("TRACE", o.trace.positional, "trace file (JSONL)", false);
        v.example("mc-replay plan trace.jsonl --nodes 16 --ttft-slo 30s --tbt-slo 100ms",
                  "how to lay out 16 nodes of the paper's model");
        v.example("mc-replay plan --profile conversation --nodes 8 --ttft-slo 10s --target 0.99",
                  "for a workload given by its profile");
        v.exit_status(5, "no simulated setting reaches the target");
        v.run_with([&o](Context& c) { return plan(o, c); });
      });
}

}  // namespace mc::replay
