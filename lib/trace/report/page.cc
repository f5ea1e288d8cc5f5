#include "trace/report/page.h"

#include "base/units.h"

namespace mc::trace {
namespace {

// Colours that people who see no red or green tell apart too, for each background.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2127; --soft: #5b6570; --grid: #e3e7eb;
  --card: #f6f8fa; --c0: #8a95a1; --c1: #0868b3; --c2: #c25700; --c3: #0a7d5b; --c4: #a23d86;
  --limit: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e4e8ec; --soft: #9aa5b1;
  --grid: #2b323a; --card: #1c2229; --c0: #77828e; --c1: #5cb3f5; --c2: #f59a4c; --c3: #45c99c;
  --c4: #e087c7; --limit: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1540px; padding: 24px; background: var(--paper);
  color: var(--ink);
  font: 14px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 22px; margin: 0 0 2px; }
p.sub { color: var(--soft); margin: 0 0 18px; overflow-wrap: anywhere; }
.tiles, .charts { display: grid; gap: 14px; margin: 0 0 20px; padding: 0; }
.tiles { grid-template-columns: repeat(auto-fill, minmax(168px, 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); }
.tiles div, figure { background: var(--card); border-radius: 8px; padding: 12px 14px; margin: 0; }
.tiles span { display: block; color: var(--soft); font-size: 12px; }
.tiles b { font-size: 19px; font-variant-numeric: tabular-nums; }
.tiles b.bad { color: var(--limit); }
figcaption span { color: var(--soft); font-size: 12px; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 4px 0 2px;
  padding: 0; font-size: 12px; color: var(--soft); }
ul.legend svg { margin-right: 6px; vertical-align: middle; }
svg.chart { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
svg text.label { fill: var(--ink); }
svg .grid { stroke: var(--grid); }
svg .axis, svg .tick { stroke: var(--soft); }
svg line.limit { stroke: var(--limit); stroke-dasharray: 5 4; }
svg line.plain { stroke: var(--soft); stroke-dasharray: 2 3; }
svg text.limit { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg .dashed { stroke-dasharray: 5 5; }
svg .dots { fill: none; stroke-width: 3.2; stroke-linecap: round; opacity: 0.55; }
svg .area { stroke: none; opacity: 0.75; }
svg .place { fill: transparent; stroke: none; }
svg .place:hover { fill: var(--ink); fill-opacity: 0.35; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); }
.s3 { stroke: var(--c3); } .s4 { stroke: var(--c4); } .f1 { fill: var(--c1); }
.f2 { fill: var(--c2); } .f3 { fill: var(--c3); } .f4 { fill: var(--c4); }
details { margin-top: 6px; font-size: 12px; } summary { color: var(--soft); cursor: pointer; }
details table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { text-align: right; padding: 1px 14px 1px 0; font-weight: normal; }
th { color: var(--soft); border-bottom: 1px solid var(--grid); }
pre { background: var(--card); border-radius: 8px; padding: 14px; overflow-x: auto;
  font-size: 12px; }
@media print { body { max-width: none; padding: 0; } figure { break-inside: avoid; } }
)";

std::string tile(const std::string& name, const std::string& value, bool bad = false) {
  return strf("<div><span>%s</span><b%s>%s</b></div>\n", html_escaped(name).c_str(),
              bad ? " class=\"bad\"" : "", html_escaped(value).c_str());
}

std::string count(uint64_t n) { return std::to_string(n); }

// Three percentiles of a distribution, in seconds or milliseconds.
std::string percentile_tiles(const std::string& name, const Distribution& d, double per_ms,
                             const char* unit) {
  std::string out;
  if (d.empty()) return out;
  for (const double p : {50.0, 90.0, 99.0})
    out += tile(strf("%s p%g", name.c_str(), p), strf("%.4g %s", d.percentile(p) * per_ms, unit));
  return out;
}

std::string tiles(const Summary& s, const RunInfo& info) {
  std::string out = tile("completed", count(s.ok) + " of " + count(s.sent), s.ok == 0);
  if (info.interrupted)
    out += tile("stopped by a signal",
                count(s.sent) + " of " + count(info.trace_requests) + " sent", true);
  if (s.rejected > 0) out += tile("refused", count(s.rejected));
  if (const uint64_t bad = s.failed + s.timeout + s.cancelled; bad > 0)
    out += tile("failed", count(bad), true);
  if ((info.slo.ttft_ms || info.slo.tbt_ms) && s.effective_ratio)
    out += tile("within objectives", strf("%.1f %%", 100 * *s.effective_ratio));
  if (s.completed_rps) out += tile("completed a second", strf("%.3g", *s.completed_rps));
  if (const auto hits = s.hit_ratio_tokens())
    out += tile("prompt tokens from caches", strf("%.1f %%", 100 * *hits));
  const bool brief = s.ttft_ms.percentile(99) < 100;  // as in the charts
  out += percentile_tiles("TTFT", s.ttft_ms, brief ? 1 : 1e-3, brief ? "ms" : "s");
  out += percentile_tiles("TBT", s.tbt_ms, 1, "ms");
  if (s.schedule_kept && !*s.schedule_kept) out += tile("schedule", "not kept", true);
  if (s.kv_errors.value_or(0) > 0) out += tile("wrong KV blocks", count(*s.kv_errors), true);
  for (const Gate& gate : s.gates)
    out += tile(gate.expr, gate.pass ? "met" : "not met", !gate.pass);
  return "<div class=\"tiles\">\n" + out + "</div>\n";
}

}  // namespace

std::string report_html(const Summary& summary, const RunInfo& info,
                        const std::vector<RequestResult>& results, const std::string& more) {
  const bool sim = info.mode == "sim";
  const std::string title = sim ? "Simulated replay" : "Replay";
  std::string sub = info.trace_path;
  for (const std::string& part :
       {sim ? std::string() : info.url, info.model,
        info.policy.empty() ? "" : "policy " + info.policy,
        info.prefill_nodes ? count(*info.prefill_nodes) + " prefill" : std::string(),
        info.decode_nodes ? count(*info.decode_nodes) + " decode" : std::string(), info.started})
    if (!part.empty()) sub += (sub.empty() ? "" : " · ") + part;
  std::string charts;
  for (const Chart& chart : report_charts(results, info)) charts += chart_svg(chart);
  if (charts.empty()) charts = "<p>Nothing was measured.</p>\n";
  return "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\">\n<title>" +
         title + "</title>\n<style>" + kStyle + "</style></head>\n<body>\n<h1>" + title +
         "</h1>\n<p class=\"sub\">" + html_escaped(sub) + "</p>\n" + tiles(summary, info) +
         "<div class=\"charts\">\n" + charts + "</div>\n<details><summary>The report as text" +
         "</summary>\n<pre>" + html_escaped(report_text(summary, info) + more) +
         "</pre></details>\n</body>\n</html>\n";
}

}  // namespace mc::trace
