#include <unistd.h>

#include <cstdio>

#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "cmd/mc-replay/outputs.h"
#include "cmd/mc-replay/trace_flags.h"
#include "cmd/mc-replay/verbs.h"
#include "io/file.h"
#include "io/limits.h"
#include "io/signals.h"
#include "load/driver.h"
#include "load/target.h"
#include "trace/analyze/stats.h"
#include "trace/report/page.h"

namespace mc::replay {
namespace {

using namespace std::chrono_literals;
using ull = unsigned long long;

struct RunOptions {
  TraceFlags trace;
  std::string url = "http://127.0.0.1:8000", model, prompt = "tokens", report, requests;
  uint64_t concurrency = 0, vocab = 0;
  Duration ttft_slo{}, tbt_slo{}, max_lag = 50ms, timeout = 600s, wait_ready = 10s;
  std::vector<std::string> require;
  bool gaps = false, progress = false;

  void describe(OptionList& v) {
    trace.describe(v);
    v("url", url, "OpenAI server: the conductor, or any other");
    v("model", model, "model to ask for; empty: the first of /v1/models");
    v("concurrency", concurrency,
      "keep this many requests in flight instead (closed loop); 0: off");
    v("ttft-slo", ttft_slo, "objective for the time to the first token; 0s: none");
    v("tbt-slo", tbt_slo, "objective for the mean of the longest 10 % of token gaps; 0s: none");
    v("require", require, "gate on the result, as 'effective>=0.95' or 'p99.ttft_s<20'");
    v("max-lag", max_lag, "how late the 99th percentile of sends may be before the run is void");
    v("prompt", prompt, "prompts as token ids, or as text of a letter a token", {"tokens", "text"});
    v("vocab", vocab, "tokens are below this; 0: what the server says, else 32000");
    v("timeout", timeout, "longest a request may take");
    v("wait-ready", wait_ready, "how long to wait for the server to be ready");
    v("report", report, "file for the report: .html with charts, .json, .md, or text");
    v("requests", requests,
      "file for a JSON line per request; its request_id is the ID of /explain/ID");
    v("gaps", gaps, "with --requests: every token gap too");
    v("progress", progress, "print progress on stderr although it is not a terminal");
  }
};

struct Plan {
  trace::Trace trace;
  std::vector<trace::Arrived> schedule;
  trace::RunInfo info;
};

std::optional<double> objective_ms(Duration d) {
  return d.count() > 0 ? std::optional(to_ms(d)) : std::nullopt;
}

// A closed loop has no times of its own: what sets them would be ignored.
Result<> check_concurrency(const RunOptions& o) {
  const auto both = [&o](const char* flag, double value) {
    return fail(Code::kInvalid,
                "--concurrency %llu and %s %s both set when requests are sent: leave one out",
                static_cast<ull>(o.concurrency), flag, number_text(value).c_str());
  };
  if (o.concurrency == 0) return {};
  if (o.trace.qps != 0) return both("--qps", o.trace.qps);
  if (o.trace.speed != 1) return both("--speed", o.trace.speed);
  return {};
}

// Finds every error in the options and the trace before the first request.
Result<Plan> plan_of(const RunOptions& o) {
  if (o.timeout.count() <= 0) return fail(Code::kInvalid, "--timeout must be above 0");
  for (const std::string& gate : o.require) MC_TRY_(trace::check_gate_syntax(gate));
  MC_TRY(const trace::PlayOptions play, o.trace.play());
  MC_TRY_(check_concurrency(o));
  MC_TRY_(check_outputs({{"--report", o.report}, {"--requests", o.requests}}, o.trace.path()));
  Plan plan;
  MC_TRY(plan.trace, o.trace.read("run"));
  MC_TRY(plan.schedule, trace::schedule(plan.trace, play));

  trace::RunInfo& info = plan.info;
  info.url = o.url;
  info.seed = o.trace.seed;
  info.trace_path = o.trace.path();
  info.block_tokens = o.trace.block;
  info.arrival = o.trace.qps > 0 && o.trace.arrival == "trace" ? "poisson" : o.trace.arrival;
  info.speed = o.trace.speed;
  if (o.trace.qps > 0) info.qps = o.trace.qps;
  if (o.concurrency > 0) info.concurrency = o.concurrency;
  info.slo = {objective_ms(o.ttft_slo), objective_ms(o.tbt_slo)};
  info.max_lag_ms = to_ms(o.max_lag);
  info.trace_requests = plan.schedule.size();
  double input = 0, output = 0;
  for (const trace::Arrived& a : plan.schedule) {
    input += static_cast<double>(a.record->input_length);
    output += static_cast<double>(a.record->output_length);
  }
  const auto n = static_cast<double>(plan.schedule.size());
  info.trace_mean_input = input / n;
  info.trace_mean_output = output / n;
  const uint64_t span_ms =
      plan.schedule.back().record->timestamp_ms - plan.schedule.front().record->timestamp_ms;
  info.trace_span_s = static_cast<double>(span_ms) / 1000;
  return plan;
}

// Predicts the hits of unbounded caches, and of caches of this cluster's size: every request that
// was sent fills them, and those that succeeded count.
void predict(Plan& plan, const load::Cluster& cluster,
             const std::vector<trace::RequestResult>& sent) {
  plan.info.prefill_nodes = cluster.prefill;
  plan.info.decode_nodes = cluster.decode;
  plan.info.policy = cluster.policy;
  plan.info.admission = cluster.admission;
  std::vector<trace::TraceRequest> records;
  uint64_t succeeded = 0;
  for (const trace::Arrived& a : plan.schedule) {
    if (records.size() == sent.size()) break;
    if (a.id == sent[records.size()].id) records.push_back(*a.record);
  }
  for (const trace::RequestResult& r : sent) succeeded += r.status == trace::Status::kOk;
  if (succeeded == 0) return;
  trace::PredictOptions options;
  options.cluster_block_tokens = cluster.block_tokens.value_or(0);
  const auto hits = [&]() -> std::optional<uint64_t> {
    const auto found = trace::predict_hits(records, plan.info.block_tokens, options);
    if (!found) return std::nullopt;
    uint64_t tokens = 0;
    for (size_t i = 0; i < records.size(); ++i)
      if (sent[i].status == trace::Status::kOk) tokens += found->cached[i];
    return tokens;
  };
  plan.info.reachable_hit_tokens = hits();
  if (!cluster.cache_blocks || !cluster.prefill) return;
  options.node_blocks = *cluster.cache_blocks;
  options.nodes = *cluster.prefill;
  plan.info.expected_hit_tokens = hits();
}

void print_progress(const load::Progress& p, Duration elapsed, bool terminal, bool last) {
  std::fprintf(stderr,
               "%s%6.1f s  sent %llu/%llu  ok %llu  rejected %llu  failed %llu  in flight %llu%s",
               terminal ? "\r" : "", to_seconds(elapsed), static_cast<ull>(p.sent),
               static_cast<ull>(p.total), static_cast<ull>(p.ok), static_cast<ull>(p.rejected),
               static_cast<ull>(p.failed), static_cast<ull>(p.in_flight),
               terminal && !last ? "\x1b[K" : "\n");
}

void warn_of_stop(size_t sent, const Plan& plan) {
  log_warn("replay", "stopped by a signal: %zu of %llu requests were sent", sent,
           static_cast<ull>(plan.info.trace_requests));
}

Result<> write_files(const RunOptions& o, const trace::Summary& summary, const trace::RunInfo& info,
                     const std::vector<trace::RequestResult>& results) {
  if (!o.requests.empty()) {
    std::string lines;
    for (const auto& r : results) lines += trace::request_line(r, o.gaps);
    MC_TRY_(io::write_output(o.requests, lines));
  }
  if (o.report.empty()) return {};
  const std::string text = trace::report_text(summary, info);
  return io::write_output(
      o.report, o.report.ends_with(".json") ? dump_json(trace::report_json(summary, info), 2) + "\n"
                : o.report.ends_with(".html") ? trace::report_html(summary, info, results)
                : o.report.ends_with(".md")   ? "# Replay report\n\n```\n" + text + "```\n"
                                              : text);
}

struct Session {
  SteadyClock clock;
  io::Loop loop{clock};
  bool interrupted = false;
  std::unique_ptr<load::Driver> driver;
  io::Signals signals{loop, [this](int) {
                        interrupted = true;
                        if (driver) driver->stop("interrupted");
                      }};
  http::Client client{loop, 1u << 16};
};

Result<load::DriveOptions> ask_server(const RunOptions& o, load::Target& target, Session& s) {
  MC_TRY_(target.wait_ready(o.wait_ready, [&s] { return s.interrupted; }));
  load::DriveOptions drive;
  drive.url = target.url();
  drive.model = o.model;
  drive.ids = strf("replay-%llx", static_cast<ull>(wall_now_ns()));
  drive.text = o.prompt == "text";
  drive.timeout = o.timeout;
  drive.concurrency = o.concurrency;
  drive.seed = o.trace.seed;
  drive.block_tokens = o.trace.block;
  if (o.vocab > 0) drive.vocab = o.vocab;
  if (!o.model.empty() && o.vocab > 0) return drive;
  const auto model = target.model();
  if (!model && o.model.empty()) return fail(model.error());
  if (!model) return drive;
  if (o.model.empty()) drive.model = model->id;
  if (o.vocab == 0 && model->vocab && *model->vocab > 0) drive.vocab = *model->vocab;
  return drive;
}

Result<> play(const RunOptions& o, Session& s) {
  const bool terminal = isatty(STDERR_FILENO) == 1, shows = terminal || o.progress;
  const Time begin = s.clock.now();
  const auto show = [&](bool last) {
    print_progress(s.driver->progress(), s.clock.now() - begin, terminal, last);
  };
  io::Loop::Handle ticker = 0;
  if (shows) ticker = s.loop.every(1s, [&show] { show(false); });
  bool finished = false;
  s.driver->start([&finished] { finished = true; });
  Result<> turned;
  while (!finished && turned) turned = s.loop.turn(1h);
  s.loop.cancel(ticker);
  if (shows) show(true);
  return turned;
}

Result<int> run(const RunOptions& o, const Context& context) {
  MC_TRY(Plan plan, plan_of(o));
  (void)io::raise_open_files(UINT64_MAX);  // each request in flight has a connection
  Session s;
  load::Target target(s.loop, s.client, o.url);
  auto drive = ask_server(o, target, s);
  if (s.interrupted) {
    warn_of_stop(0, plan);
    return 1;
  }
  if (!drive && drive.error().code == Code::kTimeout) drive.error().code = Code::kUnavailable;
  if (!drive) return fail(std::move(drive).error());
  const load::Cluster before = target.cluster();
  plan.info.model = drive->model;
  plan.info.started = wall_text(wall_now_ns());
  MC_TRY(s.driver, load::Driver::make(s.loop, s.client, plan.schedule, *drive));
  if (!s.interrupted) MC_TRY_(play(o, s));

  const load::Cluster after = target.cluster();
  if (before.kv_errors && after.kv_errors)  // a worker that restarted counts from 0 again
    plan.info.kv_errors = *after.kv_errors >= *before.kv_errors
                              ? *after.kv_errors - *before.kv_errors
                              : *after.kv_errors;
  plan.info.duration_s = to_seconds(s.driver->elapsed());
  plan.info.gaps_are_chunks = s.driver->gaps_are_chunks();
  plan.info.interrupted = s.interrupted;
  const auto results = s.driver->take_results();
  if (s.interrupted) warn_of_stop(results.size(), plan);
  predict(plan, before, results);
  trace::Summary summary = trace::summarize(results, plan.info);
  for (const std::string& expr : o.require) {
    MC_TRY(trace::Gate gate, trace::check_gate(summary, expr));
    summary.gates.push_back(std::move(gate));
  }
  const std::string out = context.json ? dump_json(trace::report_json(summary, plan.info)) + "\n"
                                       : trace::report_text(summary, plan.info);
  std::fputs(out.c_str(), stdout);
  MC_TRY_(write_files(o, summary, plan.info, results));
  const int status = load::exit_status(summary, s.interrupted);
  if (status == 6)
    log_error("replay",
              "p99 send lag %.1f ms is above --max-lag %s: this machine cannot keep the "
              "schedule; lower --speed or raise --max-lag",
              summary.lag_ms.percentile(99), to_text(o.max_lag).c_str());
  return status;
}

}  // namespace

void add_run(Program& program) {
  program.verb<RunOptions>(
      "run", "play a trace against a live cluster or any OpenAI server, and report",
      [](Verb& v, RunOptions& o) {
        v.positional("TRACE", o.trace.positional, "trace file (JSONL)", false);
        v.example("mc-replay run trace.jsonl --speed 2", "twice as fast as recorded");
        v.example("mc-replay run trace.jsonl --qps 5 --ttft-slo 2s --require 'effective>=0.95'",
                  "Poisson arrivals, with a gate for scripts");
        v.example("mc-replay run trace.jsonl --limit 200 --report run.html --requests run.jsonl",
                  "a slice, kept as a page with charts, and a line a request");
        v.exit_status(1, "a request failed, timed out or was cancelled (a refusal is no failure)");
        v.exit_status(3, "the server is not ready");
        v.exit_status(4, "the cluster found wrong KV bytes");
        v.exit_status(5, "a --require gate failed");
        v.exit_status(6, "the client could not keep the schedule (--max-lag)");
        v.run_with([&o](Context& c) { return run(o, c); });
      });
}

}  // namespace mc::replay
