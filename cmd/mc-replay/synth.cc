#include "trace/synth/synth.h"

#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "cmd/mc-replay/files.h"
#include "cmd/mc-replay/verbs.h"
#include "io/file.h"
#include "trace/analyze/stats.h"
#include "trace/fit/fit.h"
#include "trace/play/reshape.h"
#include "trace/records/csv.h"
#include "trace/synth/diurnal_rate.h"

namespace mc::replay {
namespace {

struct SynthOptions {
  std::string kind, profile = "conversation", out, from, trace, prefix, diurnal_rate, with;
  uint64_t seed = 0, requests = 0;
  uint64_t input_tokens = 1024, output_tokens = 6, shared_tokens = 0;
  double qps = 2;
  trace::Stretch by;

  void describe(OptionList& v) {
    v("profile", profile,
      "JSON file, or the name of one that comes with mc: agentic, conversation, documents, "
      "tool-agent, sample");
    v("from", from, "instead of a profile: a CSV log of requests (Azure's or BurstGPT's columns)");
    v("trace", trace, "instead of a profile: a trace to make another from, by the scales below");
    v("prefix", prefix,
      "what the prompts of --from share: none, shared:TOKENS, sessions:P or sessions:P:TOKENS");
    v("seed", seed, "the same profile and seed give the same trace");
    v("requests", requests, "how many, at the profile's rate; 0: as many as the profile says");
    v("rate-scale", by.rate, "multiplies the request rate");
    v("prefix-scale", by.prefix, "multiplies the length that a prompt shares with others");
    v("prompt-scale", by.prompt, "multiplies the unshared length of a prompt");
    v("input-tokens", input_tokens, "tokens of each prompt of 'fixed'");
    v("output-tokens", output_tokens, "tokens of each answer of 'fixed'");
    v("shared-tokens", shared_tokens,
      "tokens that all prompts of 'fixed' begin with, in whole blocks");
    v("qps", qps, "requests a second of 'fixed', evenly apart");
    v("tide", diurnal_rate,
      "spread the requests over one day: day (working hours), evening, flat, or 24 numbers, the "
      "shares of its hours");
    v("with", with, "a trace to merge into this one; they share no blocks");
    v("out", out, "file to write; empty: stdout");
  }
};

Result<> write_stdout(const std::vector<trace::TraceRequest>& records) {
  for (const trace::TraceRequest& r : records)
    if (std::fputs(trace::record_line(r).c_str(), stdout) < 0) return fail_errno("write stdout");
  if (std::fflush(stdout) != 0) return fail_errno("write stdout");
  return {};
}

// The source of the trace, for messages.
std::string source(const SynthOptions& o) {
  return !o.from.empty()    ? o.from
         : !o.trace.empty() ? o.trace
         : !o.kind.empty()  ? o.kind
                            : o.profile;
}

void print_summary(const SynthOptions& o, const trace::Trace& made, bool json) {
  const trace::TraceStats s = trace::describe(made);
  if (json) {
    const Json line = {{"out", o.out},
                       {"profile", source(o)},
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
      s.output.mean(), source(o).c_str(), static_cast<unsigned long long>(o.seed));
}

Result<int> finish(const SynthOptions& o, const Context& context, trace::Trace made) {
  if (!o.by.none()) {
    MC_TRY(made.records, trace::stretch(made.records, made.block_tokens, o.by));
  }
  if (!o.diurnal_rate.empty()) {
    MC_TRY(const trace::DiurnalRate rates, trace::parse_diurnal_rate(o.diurnal_rate));
    MC_TRY(made.records, trace::over_a_day(std::move(made.records), rates));
  }
  if (!o.with.empty()) {
    MC_TRY(const trace::Trace other, trace::read_trace(o.with));
    made.records = trace::together(std::move(made.records), other.records);
  }
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
  MC_TRY(trace::Trace made, trace::read_csv(o.from, options));
  if (made.skipped)
    log_warn("replay", "%s: skipped %llu rows; the first is line %llu: %s", o.from.c_str(),
             static_cast<unsigned long long>(made.skipped),
             static_cast<unsigned long long>(made.bad[0].line), made.bad[0].reason.c_str());
  return finish(o, context, std::move(made));
}

Result<int> reshape(const SynthOptions& o, const Context& context) {
  trace::ReadOptions read;
  read.limit = o.requests;
  MC_TRY(trace::Trace made, trace::read_trace(o.trace, read));
  if (made.skipped)
    log_warn("replay", "%s: skipped %llu malformed lines; the first is line %llu: %s",
             o.trace.c_str(), static_cast<unsigned long long>(made.skipped),
             static_cast<unsigned long long>(made.bad[0].line), made.bad[0].reason.c_str());
  return finish(o, context, std::move(made));
}

Result<int> fixed(const SynthOptions& o, const Context& context) {
  trace::FixedShape shape;
  if (o.requests > 0) shape.requests = o.requests;
  shape.input = o.input_tokens;
  shape.output = o.output_tokens;
  shape.shared_tokens = o.shared_tokens;
  shape.qps = o.qps;
  trace::Trace made;
  MC_TRY(made.records, trace::fixed(shape));
  return finish(o, context, std::move(made));
}

// The profile of a trace, as JSON that --profile reads.
Result<int> fit(const SynthOptions& o) {
  if (o.trace.empty() || !o.from.empty() || !o.prefix.empty() || !o.by.none())
    return fail(Code::kInvalid,
                "fit reads a trace and nothing else: mc-replay synth fit --trace FILE --out "
                "profile.json");
  trace::ReadOptions read;
  read.limit = o.requests;
  MC_TRY(const trace::Trace recorded, trace::read_trace(o.trace, read));
  MC_TRY(const trace::Fitted fitted, trace::fit_profile(recorded));
  const trace::FitShape &want = fitted.want, &got = fitted.got;
  const bool near = std::abs(got.mean_input / want.mean_input - 1) < 0.1 &&
                    std::abs(got.hit_rate - want.hit_rate) < 0.05;
  (near ? log_info : log_warn)(
      "replay",
      "traces from this profile, compared with %s: new sessions %.1f for %.1f %%, mean prompt %.0f "
      "for "
      "%.0f tokens, hit rate %.1f for %.1f %%%s",
      o.trace.c_str(), 100 * got.new_share, 100 * want.new_share, got.mean_input, want.mean_input,
      100 * got.hit_rate, 100 * want.hit_rate,
      near ? "" : ": its requests are neither chats, nor calls of tools, nor about documents");
  if (!o.out.empty()) {
    MC_TRY_(io::write_output(o.out, fitted.profile));
  } else if (std::fputs(fitted.profile.c_str(), stdout) < 0) {
    return fail_errno("write stdout");
  }
  return 0;
}

Result<int> synth(const SynthOptions& o, const Context& context) {
  if (o.kind == "fit") return fit(o);
  if (!o.from.empty() + !o.trace.empty() + !o.kind.empty() > 1)
    return fail(Code::kInvalid, "give one of --from, --trace and a KIND: a trace has one source");
  if (!o.kind.empty() && o.kind != "fixed")
    return fail(Code::kInvalid,
                "unknown kind '%s': there are fixed and fit; profiles go with --profile",
                o.kind.c_str());
  if (!o.from.empty()) return convert(o, context);
  if (!o.prefix.empty()) return fail(Code::kInvalid, "--prefix is for --from");
  if (!o.trace.empty()) return reshape(o, context);
  if (!o.kind.empty()) return fixed(o, context);
  MC_TRY(const std::string path, find_config("profile", o.profile));
  MC_TRY(const Json profile, read_json_file(path));
  trace::SynthOptions options;
  options.seed = o.seed;
  options.requests = o.requests;
  trace::Trace made;
  MC_TRY(made.records, trace::synthesize(profile, path, options));
  return finish(o, context, std::move(made));
}

}  // namespace

void add_synth(Program& program) {
  program.verb<SynthOptions>(
      "synth", "make a trace from a profile and a seed", [](Verb& v, SynthOptions& o) {
        v.positional(
            "KIND", o.kind,
            "fixed: identical requests; fit: writes the profile of --trace; else a profile's trace",
            false);
        v.example("mc-replay synth --profile sample --seed 1 --out sample.jsonl",
                  "the small trace of the README");
        v.example("mc-replay synth --requests 1000 | mc-replay analyze /dev/stdin",
                  "five minutes of the conversation profile");
        v.example("mc-replay synth --from azure.csv --prefix sessions:0.4:512 --out azure.jsonl",
                  "a log without block hashes, and the prefixes that its prompts share");
        v.example("mc-replay synth fixed --input-tokens 2000 --output-tokens 100 --qps 2",
                  "200 identical requests");
        v.example("mc-replay synth fit --trace t.jsonl --out profile.json",
                  "a profile whose traces are like this one");
        v.example("mc-replay synth --trace t.jsonl --rate-scale 2 --prefix-scale 1.5",
                  "the same, twice as fast, with half as much again to share");
        v.example("mc-replay synth --profile documents --requests 80000 --tide day --out day.jsonl",
                  "a day of documents, most of them in working hours");
        v.run_with([&o](Context& context) { return synth(o, context); });
      });
}

}  // namespace mc::replay
