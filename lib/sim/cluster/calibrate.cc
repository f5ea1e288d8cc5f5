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

std::optional<double> mean_of(const trace::Distribution& d, double scale) {
  return d.empty() ? std::nullopt : std::optional(d.mean() * scale);
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

Means means_in(const Json& report) {
  const auto mean = [&](const char* metric) {
    return number_at(report, {"metrics", metric, "mean"});
  };
  return {.ttft_s = mean("ttft_s"),
          .queue_s = mean("queue_s"),
          .prefill_s = mean("prefill_s"),
          .transfer_s = mean("transfer_s"),
          .first_step_s = mean("first_step_s"),
          .tbt_ms = mean("tbt_ms"),
          .tpot_ms = mean("tpot_ms"),
          .hit_ratio = number_at(report, {"cache", "hit_ratio_tokens"})};
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

Means means_of(const trace::Summary& s) {
  return {.ttft_s = mean_of(s.ttft_ms, 1e-3),
          .queue_s = mean_of(s.queue_ms, 1e-3),
          .prefill_s = mean_of(s.prefill_ms, 1e-3),
          .transfer_s = mean_of(s.transfer_ms, 1e-3),
          .first_step_s = mean_of(s.first_step_ms, 1e-3),
          .tbt_ms = mean_of(s.tbt_ms, 1),
          .tpot_ms = mean_of(s.tpot_ms, 1),
          .hit_ratio = s.hit_ratio_tokens()};
}

Result<LiveRun> live_run(const Json& report, const std::string& file) {
  const Json* schema = child(report, "schema");
  const Json* mode = child(report, "mode");
  if (schema == nullptr || *schema != "mc-replay/1" || mode == nullptr || *mode != "live")
    return fail(Code::kInvalid,
                "%s: not a live run: want the report of mc-replay run (--report FILE.json)",
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
  out.means = means_in(report);
  if (!out.means.ttft_s)
    return fail(Code::kInvalid, "%s: no mean TTFT: no request of the run succeeded", file.c_str());
  const double ok = number_at(report, {"requests", "ok"}).value_or(0);
  out.mean_input = ok > 0 ? number_at(report, {"tokens", "input"}).value_or(0) / ok : 0;
  for (const char* how : {"failed", "timeout", "cancelled"})
    out.failed +=
        static_cast<uint64_t>(std::min(number_at(report, {"requests", how}).value_or(0), 1e15));
  return out;
}

Result<MachineFit> fit_machine(const LiveRun& quiet, const Means& simulated,
                               const cost::ModelSpec& spec) {
  const Means& live = quiet.means;
  if (!live.queue_s || !live.prefill_s || !live.transfer_s || !live.tpot_ms || !simulated.queue_s ||
      !simulated.prefill_s || !simulated.tpot_ms)
    return fail(
        Code::kInvalid,
        "the quiet run has no parts of TTFT: repeat it against an mc cluster, with answers of two "
        "tokens or more");
  MachineFit fit;
  fit.overhead_s = std::max(0., *live.queue_s - *simulated.queue_s);
  if (*simulated.prefill_s > kNothing) fit.prefill_factor = *live.prefill_s / *simulated.prefill_s;
  const double bytes = quiet.mean_input * static_cast<double>(spec.kv_bytes_per_token());
  if (*live.transfer_s > kNothing && bytes > 0) fit.transfer_bytes_per_s = bytes / *live.transfer_s;
  fit.step_s = (*live.tpot_ms - *simulated.tpot_ms) * 1e-3;
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

Calibration calibrate(const Means& live, const Means& simulated, double tolerance) {
  Calibration out;
  out.tolerance = tolerance;
  out.within = true;
  const auto add = [&](const char* name, const std::optional<double>& l,
                       const std::optional<double>& s, bool promised) {
    if (!l || !s) {
      out.within &= !promised;  // what was not measured is no success
      return;
    }
    Comparison f{name, *l, *s, promised, std::nullopt};
    if (std::abs(*l) > kNothing) f.error = (*s - *l) / *l;
    if (promised)
      out.within &= f.error ? std::abs(*f.error) <= tolerance : std::abs(*s) <= kNothing;
    out.figures.push_back(std::move(f));
  };
  add("ttft_s", live.ttft_s, simulated.ttft_s, true);
  add("queue_s", live.queue_s, simulated.queue_s, false);
  add("prefill_s", live.prefill_s, simulated.prefill_s, false);
  add("transfer_s", live.transfer_s, simulated.transfer_s, false);
  add("first_step_s", live.first_step_s, simulated.first_step_s, false);
  add("tbt_ms", live.tbt_ms, simulated.tbt_ms, true);
  add("tpot_ms", live.tpot_ms, simulated.tpot_ms, false);
  add("hit_ratio", live.hit_ratio, simulated.hit_ratio, true);
  return out;
}

std::string calibration_text(const Calibration& c, const std::optional<MachineFit>& fit) {
  std::string out;
  if (fit)
    out += strf("machine   prefill x %.3f, %.3f ms a request, %s/s of KV, %+.3f ms a step\n\n",
                fit->prefill_factor, fit->overhead_s * 1e3,
                rounded_bytes_text(static_cast<uint64_t>(fit->transfer_bytes_per_s)).c_str(),
                fit->step_s * 1e3);
  out += strf("%-14s %12s %12s %9s\n", "mean", "live", "simulated", "error");
  for (const Comparison& f : c.figures) {
    const std::string error = f.error ? strf("%+.1f %%", *f.error * 100) : "-";
    const bool held = f.error && std::abs(*f.error) <= c.tolerance;
    out += strf("%-14s %12.5f %12.5f %9s%s\n", f.name.c_str(), f.live, f.simulated, error.c_str(),
                f.promised && !held ? "  over" : "");
  }
  out +=
      strf("\n%s: TTFT, TBT and the hit ratio %s within %.0f %% of the live run\n",
           c.within ? "agrees" : "DISAGREES", c.within ? "are" : "are not all", c.tolerance * 100);
  return out;
}

Json calibration_json(const Calibration& c, const std::optional<MachineFit>& fit) {
  Json figures = Json::object();
  for (const Comparison& f : c.figures)
    figures[f.name] = {{"live", f.live},
                       {"simulated", f.simulated},
                       {"error", f.error ? Json(*f.error) : Json(nullptr)},
                       {"promised", f.promised}};
  Json out = {{"schema", "mc-replay-calibration/1"},
              {"within", c.within},
              {"tolerance", c.tolerance},
              {"figures", std::move(figures)},
              {"machine", nullptr}};
  if (fit)
    out["machine"] = {{"prefill_factor", fit->prefill_factor},
                      {"overhead_s", fit->overhead_s},
                      {"transfer_bytes_per_s", fit->transfer_bytes_per_s},
                      {"step_s", fit->step_s}};
  return out;
}

}  // namespace mc::sim
