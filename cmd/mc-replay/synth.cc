#include "trace/synth.h"

#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "cmd/mc-replay/files.h"
#include "cmd/mc-replay/verbs.h"
#include "trace/csv.h"
#include "trace/stats.h"

namespace mc::replay {
namespace {

struct SynthOptions {
  std::string profile = "conversation", out, from, prefix;
  uint64_t seed = 0, requests = 0;

  void describe(OptionList& v) {
    v("profile", profile,
      "JSON file, or the name of one that comes with mc: conversation, documents, tool-agent, "
      "sample");
    v("from", from, "instead of a profile: a CSV log of requests (Azure's or BurstGPT's columns)");
    v("prefix", prefix,
      "what the prompts of --from share: none, shared:TOKENS, sessions:P or sessions:P:TOKENS");
    v("seed", seed, "the same profile and seed give the same trace");
    v("requests", requests, "how many, at the profile's rate; 0: as many as the profile says");
    v("out", out, "file to write; empty: stdout");
  }
};

Result<> write_stdout(const std::vector<trace::Record>& records) {
  for (const trace::Record& r : records)
    if (std::fputs(trace::record_line(r).c_str(), stdout) < 0) return fail_errno("write stdout");
  if (std::fflush(stdout) != 0) return fail_errno("write stdout");
  return {};
}

void print_summary(const SynthOptions& o, const trace::Trace& made, bool json) {
  const trace::TraceStats s = trace::describe(made);
  if (json) {
    const Json line = {{"out", o.out},
                       {"profile", o.from.empty() ? o.profile : o.from},
                       {"seed", o.seed},
                       {"requests", s.requests},
                       {"span_s", s.span_s},
                       {"input_mean", s.input.mean()},
                       {"output_mean", s.output.mean()}};
    std::printf("%s\n", dump_json(line).c_str());
    return;
  }
  std::printf(
      "wrote %s: %llu requests, %.1f s, %.0f in / %.0f out tokens avg, profile %s, seed "
      "%llu\n",
      o.out.c_str(), static_cast<unsigned long long>(s.requests), s.span_s, s.input.mean(),
      s.output.mean(), (o.from.empty() ? o.profile : o.from).c_str(),
      static_cast<unsigned long long>(o.seed));
}

Result<int> finish(const SynthOptions& o, const Context& context, const trace::Trace& made) {
  if (o.out.empty()) {
    MC_TRY_(write_stdout(made.records));
    return 0;
  }
  MC_TRY_(trace::write_trace(o.out, made.records));
  print_summary(o, made, context.json);
  return 0;
}

Result<int> convert(const SynthOptions& o, const Context& context) {
  if (o.prefix.empty())
    return fail(Code::kInvalid,
                "%s does not say what its prompts share: give --prefix none, shared:TOKENS, "
                "sessions:P or sessions:P:TOKENS",
                o.from.c_str());
  trace::CsvOptions options;
  MC_TRY(options.prefix, trace::parse_prefix_model(o.prefix));
  options.seed = o.seed;
  options.limit = o.requests;
  MC_TRY(const trace::Trace made, trace::read_csv(o.from, options));
  if (made.skipped)
    log_warn("replay", "%s: skipped %llu rows; the first is line %llu: %s", o.from.c_str(),
             static_cast<unsigned long long>(made.skipped),
             static_cast<unsigned long long>(made.bad[0].line), made.bad[0].reason.c_str());
  return finish(o, context, made);
}

Result<int> synth(const SynthOptions& o, const Context& context) {
  if (!o.from.empty()) return convert(o, context);
  if (!o.prefix.empty()) return fail(Code::kInvalid, "--prefix is for --from");
  MC_TRY(const std::string path, find_config("profile", o.profile));
  MC_TRY(const Json profile, read_json_file(path));
  trace::SynthOptions options;
  options.seed = o.seed;
  options.requests = o.requests;
  trace::Trace made;
  MC_TRY(made.records, trace::synthesize(profile, path, options));
  return finish(o, context, made);
}

}  // namespace

void add_synth(Program& program) {
  program.verb<SynthOptions>(
      "synth", "make a trace from a profile and a seed", [](Verb& v, SynthOptions& o) {
        v.example("mc-replay synth --profile sample --seed 1 --out sample.jsonl",
                  "the small trace of the README");
        v.example("mc-replay synth --requests 1000 | mc-replay analyze /dev/stdin",
                  "five minutes of the conversation profile");
        v.example("mc-replay synth --from azure.csv --prefix sessions:0.4:512 --out azure.jsonl",
                  "a log without block hashes, and what its prompts are said to share");
        v.run_with([&o](Context& context) { return synth(o, context); });
      });
}

}  // namespace mc::replay
