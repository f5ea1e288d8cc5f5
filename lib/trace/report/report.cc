// Formats a summary as text and JSON. summary.cc computes it.
#include "trace/report/report.h"

#include <algorithm>

#include "base/json.h"

namespace mc::trace {
namespace {

using ull = unsigned long long;

// ---- text ----------------------------------------------------------------------------------

std::string known(const std::optional<double>& v, const char* format) {
  if (!v) return "-";
  char text[64];
  std::snprintf(text, sizeof text, format, *v);
  return text;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// Seconds for what takes seconds, milliseconds for what does not: a small cluster answers in a few.
struct Scale {
  const char* name;
  double per_ms;
};
Scale unit_of(const Distribution& d) {
  return d.max() >= 10'000 ? Scale{"s", 1e-3} : Scale{"ms", 1};
}

std::string row(const char* label, const Distribution& d, Scale unit) {
  std::string out = strf("%-15s %-2s", label, unit.name);
  const double values[] = {d.mean(),         d.percentile(50), d.percentile(75), d.percentile(90),
                           d.percentile(95), d.percentile(99), d.max()};
  for (const double v : values)
    out += d.empty() ? strf("%9s", "-") : strf("%9.*f", unit.per_ms < 1 ? 3 : 1, v * unit.per_ms);
  return out + "\n";
}

std::string head(const RunInfo& info) {
  std::string out = strf("mc-replay %s  %s  %s", MC_VERSION, info.mode.c_str(), info.url.c_str());
  if (!info.model.empty()) out += "  model " + info.model;
  out += strf("\ntrace     %s  %llu requests, %.1f s, %.0f in / %.0f out tokens avg, block %llu\n",
              base_name(info.trace_path).c_str(), static_cast<ull>(info.trace_requests),
              info.trace_span_s, info.trace_mean_input, info.trace_mean_output,
              static_cast<ull>(info.block_tokens));
  return out;
}

std::string schedule_line(const Summary& s, const RunInfo& info) {
  std::string out = "schedule  ";
  if (info.concurrency)
    out += strf("closed loop, %llu at a time; times are from dispatch",
                static_cast<ull>(*info.concurrency));
  else if (info.qps)
    out += strf("%s arrivals at %.4g req/s, seed %llu, open loop", info.arrival.c_str(), *info.qps,
                static_cast<ull>(info.seed));
  else
    out += strf("speed %.2fx, open loop", info.speed);
  if (!s.lag_ms.empty())
    out += strf("; send lag p50 %.1f ms, p99 %.1f ms, max %.1f ms%s", s.lag_ms.percentile(50),
                s.lag_ms.percentile(99), s.lag_ms.max(),
                s.schedule_kept.value_or(true) ? "" : "  NOT KEPT");
  return out + "\n";
}

std::string setting_lines(const RunInfo& info) {
  std::string out;
  if (info.prefill_nodes && info.decode_nodes) {
    out += strf("cluster   %llu prefill + %llu decode", static_cast<ull>(*info.prefill_nodes),
                static_cast<ull>(*info.decode_nodes));
    if (!info.policy.empty()) out += ", policy " + info.policy;
    if (!info.admission.empty()) out += ", admission " + info.admission;
    out += "\n";
  }
  if (info.slo.ttft_ms || info.slo.tbt_ms) {
    out += "SLO       ";
    if (info.slo.ttft_ms) out += strf("TTFT <= %.4g s", *info.slo.ttft_ms / 1000);
    if (info.slo.ttft_ms && info.slo.tbt_ms) out += ", ";
    if (info.slo.tbt_ms) out += strf("TBT <= %.4g ms", *info.slo.tbt_ms);
    out += "\n";
  }
  return out;
}

std::string reasons(const std::map<std::string, uint64_t>& by) {
  std::string out;
  for (const auto& [reason, n] : by)
    out += strf("%s%s %llu", out.empty() ? "" : ", ", reason.c_str(), static_cast<ull>(n));
  return out;
}

std::string count_lines(const Summary& s, const RunInfo& info) {
  std::string out;
  if (info.interrupted)
    out += strf("stopped   by a signal: %llu of %llu requests were sent\n",
                static_cast<ull>(s.sent), static_cast<ull>(info.trace_requests));
  out += strf(
      "requests  %10llu sent %10llu ok %7llu rejected (429) %6llu failed %6llu timeout "
      "%6llu cancelled\n",
      static_cast<ull>(s.sent), static_cast<ull>(s.ok), static_cast<ull>(s.rejected),
      static_cast<ull>(s.failed), static_cast<ull>(s.timeout), static_cast<ull>(s.cancelled));
  if (!s.rejected_by.empty()) out += "rejects   " + reasons(s.rejected_by) + "\n";
  if (!s.errors.empty()) out += "errors    " + reasons(s.errors) + "\n";
  const std::optional<double> percent =
      s.effective_ratio ? std::optional(100 * *s.effective_ratio) : std::nullopt;
  out += strf("within SLO %9llu = %s %% of sent (effective)", static_cast<ull>(s.within_slo),
              known(percent, "%.2f").c_str());
  if (info.slo.ttft_ms) out += strf("   over TTFT %llu", static_cast<ull>(s.slo_ttft_miss));
  if (info.slo.tbt_ms) out += strf("   over TBT %llu", static_cast<ull>(s.slo_tbt_miss));
  return out + "\n";
}

std::string percent_of(uint64_t part, uint64_t all) {
  if (!all) return "-";
  return strf("%.1f %%", 100 * static_cast<double>(part) / static_cast<double>(all));
}

std::string rate_lines(const Summary& s, const RunInfo& info) {
  std::string out =
      strf("rates     %s req/s offered   %s completed   %s goodput\n",
           known(s.offered_rps, "%.2f").c_str(), known(s.completed_rps, "%.2f").c_str(),
           known(s.goodput_rps, "%.2f").c_str());
  const double seconds = s.duration_s.value_or(0);
  if (seconds > 0)
    out += strf("tokens    %.0f in/s   %.0f out/s\n", static_cast<double>(s.input_tokens) / seconds,
                static_cast<double>(s.output_tokens) / seconds);
  out += "cache     ";
  if (s.hit_tokens)
    out += strf("%llu hit tokens = %s of input", static_cast<ull>(*s.hit_tokens),
                percent_of(*s.hit_tokens, s.hit_known_input).c_str());
  else
    out += s.ok ? "hits unknown: the server does not report cached tokens"
                : "hits unknown: no request succeeded";
  if (info.expected_hit_tokens)
    out += strf("   expected of this cluster %llu", static_cast<ull>(*info.expected_hit_tokens));
  if (info.reachable_hit_tokens)
    out += strf("   reachable %llu", static_cast<ull>(*info.reachable_hit_tokens));
  return out + "\nintegrity " +
         (s.kv_errors ? strf("%llu KV errors", static_cast<ull>(*s.kv_errors))
                      : std::string("not reported by the server")) +
         "\n";
}

std::string table(const Summary& s, const RunInfo& info) {
  std::string out =
      strf("\n%18s%9s%9s%9s%9s%9s%9s%9s\n", "", "mean", "p50", "p75", "p90", "p95", "p99", "max");
  const Scale ttft = unit_of(s.ttft_ms);
  out += row("TTFT", s.ttft_ms, ttft);
  const std::pair<const char*, const Distribution*> parts[] = {{"  queue", &s.queue_ms},
                                                               {"  prefill", &s.prefill_ms},
                                                               {"  transfer", &s.transfer_ms},
                                                               {"  first step", &s.first_step_ms}};
  for (const auto& [label, d] : parts)
    if (!d->empty()) out += row(label, *d, ttft);
  const Scale ms{"ms", 1};
  out += row("TBT (worst 10%)", s.tbt_ms, ms);
  out += row("TPOT", s.tpot_ms, ms);
  out += row(info.gaps_are_chunks ? "ICL (chunks)" : "ITL", s.itl_ms, ms);
  out += row("E2E", s.e2e_ms, unit_of(s.e2e_ms));
  return out + "\n";
}

std::string node_lines(const Summary& s) {
  std::string out;
  for (const char* role : {"prefill", "decode"}) {
    std::string line;
    for (const NodeShare& n : s.nodes) {
      if (std::string_view(n.role) != role) continue;
      line += strf("%s%s %llu requests", line.empty() ? "" : ", ", n.id.c_str(),
                   static_cast<ull>(n.requests));
      if (std::string_view(role) == "prefill" && n.input_tokens)
        line += " hit " + percent_of(n.hit_tokens, n.input_tokens);
    }
    if (!line.empty()) out += strf("%-9s %s\n", role, line.c_str());
  }
  if (!s.predictor_error_ms.empty())
    out += strf("predictor TTFT predicted - actual: mean %+.1f ms, |err| p90 %.1f ms\n",
                s.predictor_error_ms.mean(), s.predictor_abs_ms.percentile(90));
  for (const Gate& g : s.gates)
    out += strf("require   %s: %s\n", g.expr.c_str(), g.pass ? "pass" : "FAIL");
  return out;
}

// ---- JSON ----------------------------------------------------------------------------------

template <class T>
Json maybe(const std::optional<T>& v) {
  return v ? Json(*v) : Json(nullptr);
}
Json text_or_null(const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); }
std::optional<double> scaled(const std::optional<double>& v, double by) {
  return v ? std::optional(*v * by) : std::nullopt;
}
std::optional<double> share_of(const std::optional<uint64_t>& part, uint64_t all) {
  if (!part || !all) return std::nullopt;
  return static_cast<double>(*part) / static_cast<double>(all);
}

Json statistics(const Distribution& d, double scale) {
  if (d.empty()) return nullptr;
  Json out = {{"n", d.n()}, {"mean", d.mean() * scale}, {"std", d.deviation() * scale}};
  for (const int p : {1, 5, 10, 25, 50, 75, 90, 95, 99})
    out["p" + std::to_string(p)] = d.percentile(p) * scale;
  out["max"] = d.max() * scale;
  return out;
}

Json cdf(const Distribution& d) {
  Json out = Json::array();
  for (int percent = 5; percent <= 100 && !d.empty(); percent += 5)
    out.push_back({d.percentile(percent), percent / 100.0});
  return out;
}

Json requests_json(const Summary& s) {
  Json errors = Json::array();
  for (const auto& [reason, n] : s.errors) errors.push_back({{"reason", reason}, {"count", n}});
  Json by = Json::object();
  for (const auto& [reason, n] : s.rejected_by) by[reason] = n;
  return {{"sent", s.sent},
          {"ok", s.ok},
          {"within_slo", s.within_slo},
          {"rejected", s.rejected},
          {"failed", s.failed},
          {"timeout", s.timeout},
          {"cancelled", s.cancelled},
          {"slo_ttft_miss", s.slo_ttft_miss},
          {"slo_tbt_miss", s.slo_tbt_miss},
          {"rejected_by", by},
          {"errors", errors}};
}

Json run_json(const RunInfo& info, const Summary& s) {
  Json out = {{"schema", "mc-replay/1"},
              {"tool", std::string("mc-replay ") + MC_VERSION},
              {"mode", info.mode},
              {"started", text_or_null(info.started)},
              {"duration_s", maybe(s.duration_s)},
              {"interrupted", info.interrupted},
              {"seed", info.seed}};
  out["trace"] = {{"path", info.trace_path},     {"requests", info.trace_requests},
                  {"span_s", info.trace_span_s}, {"block_tokens", info.block_tokens},
                  {"arrival", info.arrival},     {"speed", info.speed},
                  {"qps", maybe(info.qps)},      {"concurrency", maybe(info.concurrency)}};
  out["cluster"] = {
      {"url", text_or_null(info.url)},        {"model", text_or_null(info.model)},
      {"prefill", maybe(info.prefill_nodes)}, {"decode", maybe(info.decode_nodes)},
      {"policy", text_or_null(info.policy)},  {"admission", text_or_null(info.admission)}};
  out["slo"] = {{"ttft_s", maybe(scaled(info.slo.ttft_ms, 1e-3))},
                {"tbt_ms", maybe(info.slo.tbt_ms)}};
  return out;
}

Json nodes_json(const Summary& s) {
  Json out = Json::array();
  for (const NodeShare& n : s.nodes)
    out.push_back({{"id", n.id},
                   {"role", n.role},
                   {"requests", n.requests},
                   {"hit_ratio", maybe(share_of(n.hit_tokens, n.input_tokens))}});
  return out;
}

}  // namespace

std::string report_text(const Summary& s, const RunInfo& info) {
  return head(info) + schedule_line(s, info) + setting_lines(info) + "\n" + count_lines(s, info) +
         rate_lines(s, info) + table(s, info) + node_lines(s) +
         "definitions       TTFT from intended send to first token; TBT mean of the longest 10 % "
         "of "
         "a request's\n                  gaps; TPOT (E2E - TTFT) / (tokens - 1); " +
         (info.gaps_are_chunks ? "ICL every gap between chunks: their\n                  token "
                                 "counts are unknown, so TBT is of chunks too\n"
                               : "ITL every gap\n");
}

Json report_json(const Summary& s, const RunInfo& info) {
  Json out = run_json(info, s);
  out["schedule"] = {{"lag_ms", statistics(s.lag_ms, 1)}, {"kept", maybe(s.schedule_kept)}};
  out["requests"] = requests_json(s);
  out["effective_ratio"] = maybe(s.effective_ratio);
  out["goodput_rps"] = maybe(s.goodput_rps);
  out["offered_rps"] = maybe(s.offered_rps);
  out["completed_rps"] = maybe(s.completed_rps);
  const double rate = s.duration_s.value_or(0) > 0 ? 1 / *s.duration_s : 0;
  const auto per_s = [&](uint64_t n) {
    return rate > 0 ? Json(static_cast<double>(n) * rate) : Json(nullptr);
  };
  out["tokens"] = {{"input", s.input_tokens},
                   {"output", s.output_tokens},
                   {"input_per_s", per_s(s.input_tokens)},
                   {"output_per_s", per_s(s.output_tokens)}};
  std::optional<uint64_t> hit_blocks;
  if (s.hit_tokens && info.block_tokens) hit_blocks = s.hit_full_blocks;
  out["cache"] = {
      {"hit_tokens", maybe(s.hit_tokens)},
      {"expected_hit_tokens", maybe(info.expected_hit_tokens)},
      {"reachable_hit_tokens", maybe(info.reachable_hit_tokens)},
      {"hit_ratio_tokens", maybe(s.hit_ratio_tokens())},
      {"reachable_ratio_tokens", maybe(share_of(info.reachable_hit_tokens, s.input_tokens))},
      {"hit_ratio_full_blocks", maybe(share_of(hit_blocks, s.hit_known_full_blocks))}};
  out["kv_errors"] = maybe(s.kv_errors);
  out["metrics"] = {{"ttft_s", statistics(s.ttft_ms, 1e-3)},
                    {"queue_s", statistics(s.queue_ms, 1e-3)},
                    {"prefill_s", statistics(s.prefill_ms, 1e-3)},
                    {"transfer_s", statistics(s.transfer_ms, 1e-3)},
                    {"first_step_s", statistics(s.first_step_ms, 1e-3)},
                    {"tbt_ms", statistics(s.tbt_ms, 1)},
                    {"tpot_ms", statistics(s.tpot_ms, 1)},
                    {"itl_ms", statistics(s.itl_ms, 1)},
                    {"e2e_s", statistics(s.e2e_ms, 1e-3)}};
  out["itl_is_per_chunk"] = info.gaps_are_chunks;
  out["cdf"] = {{"tbt_ms", cdf(s.tbt_ms)}};
  out["nodes"] = nodes_json(s);
  out["predictor"] = nullptr;
  if (!s.predictor_error_ms.empty())
    out["predictor"]["ttft_err_s"] = {{"mean", s.predictor_error_ms.mean() * 1e-3},
                                      {"abs_p90", s.predictor_abs_ms.percentile(90) * 1e-3}};
  out["requires"] = Json::array();
  for (const Gate& g : s.gates) out["requires"].push_back({{"expr", g.expr}, {"pass", g.pass}});
  return out;
}

std::string request_line(const RequestResult& r, bool gaps) {
  Json out = {{"id", r.id},
              {"request_id", text_or_null(r.request_id)},
              {"t_intended_ms", r.t_intended_ms},
              {"t_sent_ms", maybe(r.t_sent_ms)},
              {"input", r.input},
              {"output", r.output},
              {"hash_blocks", r.hash_blocks},
              {"cached", maybe(r.cached)},
              {"prefill", text_or_null(r.prefill)},
              {"decode", text_or_null(r.decode)},
              {"status", name(r.status)},
              {"http", r.http ? Json(r.http) : Json(nullptr)},
              {"reason", text_or_null(r.reason)},
              {"queue_ms", maybe(r.queue_ms)},
              {"prefill_ms", maybe(r.prefill_ms)},
              {"transfer_ms", maybe(r.transfer_ms)},
              {"first_step_ms", maybe(r.first_step_ms)},
              {"predicted_ttft_ms", maybe(r.predicted_ttft_ms)},
              {"ttft_ms", maybe(r.ttft_ms)},
              {"tbt_ms", maybe(r.tbt_ms())},
              {"tpot_ms", maybe(r.tpot_ms())},
              {"e2e_ms", maybe(r.e2e_ms)},
              {"kv_errors", maybe(r.kv_errors)}};
  if (gaps) out["gaps_ms"] = r.gaps_ms;
  return dump_json(out) + "\n";
}

}  // namespace mc::trace
