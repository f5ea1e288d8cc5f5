#include "sim/cluster/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/units.h"

namespace mc::sim {
namespace {

constexpr double kStepMin = 1e-6;  // seconds
constexpr double kFree = 1e15;     // bytes a second: no time at all
constexpr double kNothing = 1e-9;  // a figure below this has no relative error
constexpr uint64_t kRequestsMax = 1u << 30;

const Json* child(const Json& json, const char* key) {
  return json.is_object() && json.contains(key) ? &json[key] : nullptr;
}

std::optional<double> number_at(const Json& json, std::initializer_list<const char*> path) {
  const Json* here = &json;
  for (const char* key : path)
    if ((here = child(*here, key)) == nullptr) return std::nullopt;
  if (!here->is_number()) return std::nullopt;
  const double v = here->get<double>();
  return std::isfinite(v) && v >= 0 ? std::optional(v) : std::nullopt;
}

std::string word_at(const Json& json, const char* group, const char* key) {
  const Json* g = child(json, group);
  const Json* v = g != nullptr ? child(*g, key) : nullptr;
  return v != nullptr && v->is_string() ? v->get<std::string>() : "";
}

std::optional<Spread> spread_of(const trace::Distribution& d, double scale) {
  if (d.empty()) return std::nullopt;
  return Spread{d.mean() * scale, d.percentile(50) * scale, d.percentile(90) * scale};
}

Result<uint64_t> whole(const Json& report, const std::string& file, const char* group,
                       const char* key, uint64_t least) {
  const auto v = number_at(report, {group, key});
  if (!v || *v < static_cast<double>(least) || *v > static_cast<double>(kRequestsMax) ||
      *v != std::floor(*v))
    return fail(Code::kInvalid, "%s: no usable %s.%s: it is needed to simulate the run",
                file.c_str(), group, key);
  return static_cast<uint64_t>(*v);
}

Parts parts_in(const Json& report) {
  const auto spread = [&](const char* metric) -> std::optional<Spread> {
    const auto at = [&](const char* key) { return number_at(report, {"metrics", metric, key}); };
    const auto mean = at("mean"), p50 = at("p50"), p90 = at("p90");
    if (!mean || !p50 || !p90) return std::nullopt;
    return Spread{*mean, *p50, *p90};
  };
  return {.ttft_s = spread("ttft_s"),
          .queue_s = spread("queue_s"),
          .prefill_s = spread("prefill_s"),
          .transfer_s = spread("transfer_s"),
          .first_step_s = spread("first_step_s"),
          .tbt_ms = spread("tbt_ms"),
          .tpot_ms = spread("tpot_ms"),
          .hit_ratio = number_at(report, {"cache", "hit_ratio_tokens"})};
}

std::optional<Lateness> lateness_in(const Json& report) {
  const auto p90 = number_at(report, {"schedule", "lag_ms", "p90"});
  const auto p99 = number_at(report, {"schedule", "lag_ms", "p99"});
  if (!p90 || !p99) return std::nullopt;
  return Lateness{*p90 * 1e-3, *p99 * 1e-3};
}

Result<trace::PlayOptions> play_in(const Json& report) {
  trace::PlayOptions play;
  const std::string arrival = word_at(report, "trace", "arrival");
  MC_TRY_(trace::parse_arrival(arrival.empty() ? "trace" : arrival, play));
  play.speed = number_at(report, {"trace", "speed"}).value_or(1);
  play.qps = number_at(report, {"trace", "qps"}).value_or(0);
  play.seed = static_cast<uint64_t>(
      std::min(number_at(report, {"seed"}).value_or(0), 9e15));  // exact in a double
  return play;
}

}  // namespace

Parts parts_of(const trace::Summary& s) {
  return {.ttft_s = spread_of(s.ttft_ms, 1e-3),
          .queue_s = spread_of(s.queue_ms, 1e-3),
          .prefill_s = spread_of(s.prefill_ms, 1e-3),
          .transfer_s = spread_of(s.transfer_ms, 1e-3),
          .first_step_s = spread_of(s.first_step_ms, 1e-3),
          .tbt_ms = spread_of(s.tbt_ms, 1),
          .tpot_ms = spread_of(s.tpot_ms, 1),
          .hit_ratio = s.hit_ratio_tokens()};
}

Result<LiveRun> live_run(const Json& report, const std::string& file) {
  const Json* schema = child(report, "schema");
  const Json* mode = child(report, "mode");
  if (schema == nullptr || *schema != "mc-replay/1" || mode == nullptr || *mode != "live")
    return fail(Code::kInvalid,
                "%s: not a live run: want the report of mc-replay run (--report FILE.json)",
                file.c_str());
  if (const Json* stopped = child(report, "interrupted"); stopped != nullptr && *stopped == true)
    return fail(Code::kInvalid,
                "%s: the run was stopped by a signal before its end: repeat it, and let it end",
                file.c_str());
  LiveRun out;
  MC_TRY(out.requests, whole(report, file, "trace", "requests", 1));
  MC_TRY(out.prefill, whole(report, file, "cluster", "prefill", 1));
  MC_TRY(out.decode, whole(report, file, "cluster", "decode", 1));
  auto play = play_in(report);
  if (!play)
    return fail(Code::kInvalid, "%s: trace.arrival: %s", file.c_str(), play.error().what.c_str());
  out.play = *play;
  out.trace_path = word_at(report, "trace", "path");
  out.policy = word_at(report, "cluster", "policy");
  out.admission = word_at(report, "cluster", "admission");
  out.concurrency =
      static_cast<uint64_t>(std::min(number_at(report, {"trace", "concurrency"}).value_or(0), 1e9));
  out.parts = parts_in(report);
  out.late = lateness_in(report);
  if (!out.parts.ttft_s)
    return fail(Code::kInvalid, "%s: no TTFT: no request of the run succeeded", file.c_str());
  const double ok = number_at(report, {"requests", "ok"}).value_or(0);
  out.mean_input = ok > 0 ? number_at(report, {"tokens", "input"}).value_or(0) / ok : 0;
  for (const char* how : {"failed", "timeout", "cancelled"})
    out.failed +=
        static_cast<uint64_t>(std::min(number_at(report, {"requests", how}).value_or(0), 1e15));
  return out;
}

trace::PlayOptions one_by_one(const LiveRun& quiet, trace::PlayOptions play) {
  constexpr double kApart = 86'400, kLongest = 0.9e9;  // seconds; a schedule's are 1e9 at most
  play.arrival = trace::Arrival::kUniform;
  play.speed = 1;  // of the live run: of the recorded times, which are not played
  play.qps = std::max(1 / kApart, static_cast<double>(quiet.requests) / kLongest);
  return play;
}

Result<MachineFit> fit_machine(const LiveRun& quiet, const Parts& simulated,
                               const cost::ModelSpec& spec) {
  const Parts& live = quiet.parts;
  if (!live.queue_s || !live.prefill_s || !live.transfer_s || !live.tpot_ms || !simulated.queue_s ||
      !simulated.prefill_s || !simulated.tpot_ms)
    return fail(
        Code::kInvalid,
        "the quiet run has no parts of TTFT: repeat it against an mc cluster, with answers of two "
        "tokens or more");
  MachineFit fit;
  fit.overhead_s = std::max(0., live.queue_s->mean - simulated.queue_s->mean);
  if (simulated.prefill_s->mean > kNothing)
    fit.prefill_factor = live.prefill_s->mean / simulated.prefill_s->mean;
  const double bytes = quiet.mean_input * static_cast<double>(spec.kv_bytes_per_token());
  if (live.transfer_s->mean > kNothing && bytes > 0)
    fit.transfer_bytes_per_s = bytes / live.transfer_s->mean;
  fit.step_s = (live.tpot_ms->mean - simulated.tpot_ms->mean) * 1e-3;
  return fit;
}

void apply(const MachineFit& fit, cost::ModelSpec& spec, SimOptions& options) {
  cost::CostModel& c = spec.cost;
  c.c0 *= fit.prefill_factor;
  c.c1 *= fit.prefill_factor;
  c.c2 *= fit.prefill_factor;
  c.load_bytes_per_s /= fit.prefill_factor > kNothing ? fit.prefill_factor : 1;
  c.t0 = std::max(kStepMin, c.t0 + fit.step_s);
  options.overhead += from_seconds(fit.overhead_s);
  if (fit.transfer_bytes_per_s > 0) {
    options.nic_gbps = fit.transfer_bytes_per_s * 8 / 1e9;
    options.load_bytes_per_s = kFree;  // it is in the transfer
    c.transfer_bytes_per_s = fit.transfer_bytes_per_s;
  }
}

Calibration calibrate(const LiveRun& live, const Parts& simulated, const Tolerances& tolerances) {
  Calibration out;
  out.late = live.late;
  const auto add = [&](Comparison f, double late_s) {
    if (std::abs(f.live) > kNothing) f.error = (f.simulated - f.live) / f.live;
    if (f.tolerance) {
      const double off = std::abs(f.simulated - f.live);
      const bool held = f.error ? std::abs(*f.error) <= *f.tolerance : off <= kNothing;
      f.agreement = held                      ? Agreement::kHeld
                    : off < kWakeups * late_s ? Agreement::kUnmeasured
                                              : Agreement::kOver;
    }
    out.figures.push_back(std::move(f));
  };
  const auto part = [&](const char* name, std::optional<Spread> Parts::*of, bool promised,
                        double in_seconds) {
    const std::optional<Spread>&l = live.parts.*of, &s = simulated.*of;
    if (!l || !s) {
      if (promised) out.missing.emplace_back(name);
      return;
    }
    const double p90 = live.late ? live.late->p90 / in_seconds : 0;
    const double p99 = live.late ? live.late->p99 / in_seconds : 0;
    const auto within = [&](double t) { return promised ? std::optional(t) : std::nullopt; };
    add({.name = name, .of = "mean", .live = l->mean, .simulated = s->mean}, 0);
    add({.name = name,
         .of = "p50",
         .live = l->p50,
         .simulated = s->p50,
         .tolerance = within(tolerances.p50)},
        p90);
    add({.name = name,
         .of = "p90",
         .live = l->p90,
         .simulated = s->p90,
         .tolerance = within(tolerances.p90)},
        p99);
  };
  part("ttft_s", &Parts::ttft_s, true, 1);
  part("queue_s", &Parts::queue_s, true, 1);
  part("prefill_s", &Parts::prefill_s, false, 1);
  part("transfer_s", &Parts::transfer_s, false, 1);
  part("first_step_s", &Parts::first_step_s, false, 1);
  part("tbt_ms", &Parts::tbt_ms, true, 1e-3);
  part("tpot_ms", &Parts::tpot_ms, false, 1e-3);
  if (live.parts.hit_ratio && simulated.hit_ratio)
    add({.name = "hit_ratio",
         .of = "ratio",
         .live = *live.parts.hit_ratio,
         .simulated = *simulated.hit_ratio,
         .tolerance = tolerances.p50},
        0);
  else
    out.missing.emplace_back("hit_ratio");
  const auto any = [&](Agreement a) {
    return std::any_of(out.figures.begin(), out.figures.end(),
                       [&](const Comparison& f) { return f.agreement == a; });
  };
  out.verdict = !out.missing.empty() || any(Agreement::kOver) ? Agreement::kOver
                : any(Agreement::kUnmeasured)                 ? Agreement::kUnmeasured
                                                              : Agreement::kHeld;
  return out;
}

namespace {

const char* word(Agreement a) {
  switch (a) {
    case Agreement::kNotPromised: return "";
    case Agreement::kHeld: return "held";
    case Agreement::kOver: return "over";
    case Agreement::kUnmeasured: return "not measured";
  }
  return "?";
}

std::string verdict_text(const Calibration& c) {
  std::string named;
  for (const Comparison& f : c.figures)
    if (f.agreement == c.verdict && c.verdict != Agreement::kHeld)
      named += strf("%s%s %s (%s)", named.empty() ? "" : ", ", f.name.c_str(), f.of.c_str(),
                    f.error ? strf("%+.1f %%", *f.error * 100).c_str() : "live is 0");
  for (const std::string& name : c.missing)
    named += strf("%s%s (absent in one run)", named.empty() ? "" : ", ", name.c_str());
  switch (c.verdict) {
    case Agreement::kHeld: return "agrees: TTFT, TBT, queueing and hits are as promised";
    case Agreement::kUnmeasured:
      return strf(
          "NOT MEASURED: the machine ran threads %.1f ms late (p99 %.1f ms), too late to "
          "judge %s: repeat it on a quieter machine, or with a larger --time-scale",
          c.late->p90 * 1e3, c.late->p99 * 1e3, named.c_str());
    default: return "DISAGREES: over what is promised: " + named;
  }
}

}  // namespace

std::string calibration_text(const Calibration& c, const std::optional<MachineFit>& fit) {
  std::string out;
  if (fit)
    out += strf("machine   prefill x %.3f, %.3f ms a request, %s/s of KV, %+.3f ms a step\n",
                fit->prefill_factor, fit->overhead_s * 1e3,
                rounded_bytes_text(static_cast<uint64_t>(fit->transfer_bytes_per_s)).c_str(),
                fit->step_s * 1e3);
  if (c.late)
    out += strf("lateness  of the client's sends: p90 %.3f ms, p99 %.3f ms\n", c.late->p90 * 1e3,
                c.late->p99 * 1e3);
  out += strf("%s%-14s %-6s %12s %12s %9s\n", out.empty() ? "" : "\n", "", "", "live", "simulated",
              "error");
  for (const Comparison& f : c.figures) {
    const std::string error = f.error ? strf("%+.1f %%", *f.error * 100) : "-";
    out += strf("%-14s %-6s %12.5f %12.5f %9s", f.name.c_str(), f.of.c_str(), f.live, f.simulated,
                error.c_str());
    if (f.tolerance) out += strf("  %s (%.0f %%)", word(f.agreement), *f.tolerance * 100);
    out += "\n";
  }
  return out + "\n" + verdict_text(c) + "\n";
}

Json calibration_json(const Calibration& c, const std::optional<MachineFit>& fit) {
  Json figures = Json::object();
  for (const Comparison& f : c.figures) {
    Json one = {{"live", f.live},
                {"simulated", f.simulated},
                {"error", f.error ? Json(*f.error) : Json(nullptr)},
                {"promised", f.tolerance.has_value()}};
    if (f.tolerance) one["tolerance"] = *f.tolerance;
    if (f.tolerance) one["verdict"] = word(f.agreement);
    figures[f.of == "mean" || f.of == "ratio" ? f.name : f.name + "_" + f.of] = std::move(one);
  }
  Json out = {{"schema", "mc-replay-calibration/1"},
              {"within", c.verdict == Agreement::kHeld},
              {"verdict", c.verdict == Agreement::kHeld         ? "agrees"
                          : c.verdict == Agreement::kUnmeasured ? "not measured"
                                                                : "disagrees"},
              {"why", verdict_text(c)},
              {"late_s", nullptr},
              {"figures", std::move(figures)},
              {"machine", nullptr}};
  if (c.late) out["late_s"] = {{"p90", c.late->p90}, {"p99", c.late->p99}};
  if (fit)
    out["machine"] = {{"prefill_factor", fit->prefill_factor},
                      {"overhead_s", fit->overhead_s},
                      {"transfer_bytes_per_s", fit->transfer_bytes_per_s},
                      {"step_s", fit->step_s}};
  return out;
}

}  // namespace mc::sim
