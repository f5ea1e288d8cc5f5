#include "sim/study/plan.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "base/units.h"

namespace mc::sim {
namespace {

using ull = unsigned long long;
constexpr uint64_t kSplitsMax = 15;  // of a first look; a second one goes between its best two

PlanPoint point_of(const Run& run) {
  PlanPoint out;
  out.setting = run.setting;
  out.effective = run.summary.effective_ratio.value_or(0);
  out.goodput_rps = run.summary.goodput_rps;
  if (!run.summary.ttft_ms.empty()) out.ttft_p99_s = run.summary.ttft_ms.percentile(99) / 1e3;
  if (!run.summary.tbt_ms.empty()) out.tbt_p99_ms = run.summary.tbt_ms.percentile(99);
  out.hit_ratio = run.summary.hit_ratio_tokens();
  return out;
}

struct Planner {
  const trace::Trace& trace;
  const cost::ModelSpec& spec;
  StudyOptions study;
  const double target;

  Result<std::vector<PlanPoint>> points(const std::string& name,
                                        const std::vector<std::string>& values) {
    StudyOptions o = study;
    std::string sweep = name + "=";
    for (const std::string& v : values) sweep += (v == values.front() ? "" : ",") + v;
    o.sweep = {sweep};
    o.repeat = 1;
    MC_TRY(const auto runs, run_study(trace, spec, o));
    std::vector<PlanPoint> out;
    for (const Run& run : runs) out.push_back(point_of(run));
    return out;
  }
  // The first of the rising values that reaches the target; else the first of the most effective.
  size_t least(const std::vector<PlanPoint>& points) const {
    for (size_t i = 0; i < points.size(); ++i)
      if (points[i].effective >= target) return i;
    return most(points);
  }
  static size_t most(const std::vector<PlanPoint>& points) {
    size_t best = 0;
    for (size_t i = 1; i < points.size(); ++i) {
      const PlanPoint &a = points[i], &b = points[best];
      if (a.effective != b.effective ? a.effective > b.effective
                                     : a.ttft_p99_s.value_or(1e18) < b.ttft_p99_s.value_or(1e18))
        best = i;
    }
    return best;
  }
};

std::string split_text(uint64_t prefill, uint64_t nodes) {
  return std::to_string(prefill) + ":" + std::to_string(nodes - prefill);
}

uint64_t prefill_of(const PlanPoint& p) {
  return static_cast<uint64_t>(
      parse_number(p.setting[0].second.substr(0, p.setting[0].second.find(':'))).value_or(1));
}

// Tries all splits of few nodes. Of many nodes it tries evenly spaced splits, then those near the
// best.
Result<PlanCurve> splits(Planner& planner, uint64_t nodes) {
  const uint64_t step = (nodes - 1 + kSplitsMax - 1) / kSplitsMax;
  std::set<uint64_t> tried;
  const auto look = [&](uint64_t from, uint64_t to, uint64_t by) -> Result<std::vector<PlanPoint>> {
    std::vector<std::string> values;
    for (uint64_t p = from; p <= to; p += by)
      if (tried.insert(p).second) values.push_back(split_text(p, nodes));
    if (values.empty()) return std::vector<PlanPoint>();
    return planner.points("pd", values);
  };
  PlanCurve curve{.of = "split", .points = {}};
  MC_TRY(curve.points, look(std::max<uint64_t>(1, step / 2), nodes - 1, step));
  if (step > 1) {
    const uint64_t best = prefill_of(curve.points[Planner::most(curve.points)]);
    const uint64_t from = best > step ? best - step + 1 : 1;
    const uint64_t to = std::min(nodes - 1, best + step - 1);
    MC_TRY(auto more, look(from, to, std::max<uint64_t>(1, (to - from) / kSplitsMax)));
    for (PlanPoint& p : more) curve.points.push_back(std::move(p));
    std::sort(curve.points.begin(), curve.points.end(),
              [](const PlanPoint& a, const PlanPoint& b) { return prefill_of(a) < prefill_of(b); });
  }
  curve.chosen = Planner::most(curve.points);
  return curve;
}

template <class T>
std::vector<std::string> words(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::vector<std::string> out;
  for (const T& v : values) out.push_back(strf("%.15g", static_cast<double>(v)));
  return out;
}

Result<> check_plan(const PlanOptions& o) {
  if (o.nodes < 2 || o.nodes > kNodesMax)
    return fail(Code::kInvalid, "--nodes %llu: want 2 to %llu", static_cast<ull>(o.nodes),
                static_cast<ull>(kNodesMax));
  const auto& a = o.study.sim.admission;
  if (a.ttft_slo.count() <= 0 && a.tbt_slo.count() <= 0)
    return fail(Code::kInvalid,
                "a plan needs a promise to keep: give --ttft-slo, --tbt-slo or both");
  if (!(o.target > 0 && o.target <= 1))
    return fail(Code::kInvalid, "--target %g: want a share above 0, at most 1", o.target);
  if (o.cache_tokens.empty() || o.nic_gbps.empty())
    return fail(Code::kInvalid, "--caches and --nics: give at least one value each");
  for (const double g : o.nic_gbps)
    if (!(g > 0 && g <= 1e6)) return fail(Code::kInvalid, "--nics %g: want Gbit/s above 0", g);
  if (o.study.sim.engine != "disaggregated")
    return fail(Code::kInvalid, "--engine %s has no split to plan", o.study.sim.engine.c_str());
  if (!o.study.sweep.empty()) return fail(Code::kInvalid, "%s", "a plan makes its own sweeps");
  return {};
}

Json or_null(const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); }

}  // namespace

Result<Planned> plan(const trace::Trace& trace, const cost::ModelSpec& spec, const PlanOptions& o) {
  MC_TRY_(check_plan(o));
  Planner planner{trace, spec, o.study, o.target};
  SimOptions& sim = planner.study.sim;
  Planned out;
  MC_TRY(PlanCurve split, splits(planner, o.nodes));
  out.prefill = prefill_of(split.points[split.chosen]);
  out.decode = o.nodes - out.prefill;
  out.curves.push_back(std::move(split));
  sim.prefill = out.prefill;
  sim.decode = out.decode;
  PlanCurve cache{.of = "cache", .points = {}};
  MC_TRY(cache.points, planner.points("cache-tokens", words(o.cache_tokens)));
  cache.chosen = planner.least(cache.points);
  std::vector<uint64_t> caches = o.cache_tokens;
  std::sort(caches.begin(), caches.end());
  caches.erase(std::unique(caches.begin(), caches.end()), caches.end());
  sim.cache_tokens = out.cache_tokens = caches[cache.chosen];
  out.curves.push_back(std::move(cache));
  PlanCurve network{.of = "network", .points = {}};
  MC_TRY(network.points, planner.points("nic-gbps", words(o.nic_gbps)));
  network.chosen = planner.least(network.points);
  std::vector<double> nics = o.nic_gbps;
  std::sort(nics.begin(), nics.end());
  nics.erase(std::unique(nics.begin(), nics.end()), nics.end());
  out.nic_gbps = nics[network.chosen];
  out.effective = network.points[network.chosen].effective;
  out.met = out.effective >= o.target;
  out.curves.push_back(std::move(network));
  return out;
}

std::string plan_text(const Planned& p, const PlanOptions& o) {
  std::string out;
  for (const PlanCurve& curve : p.curves) {
    out += strf("%-26s %9s %9s %10s %11s %6s\n", curve.of.c_str(), "effective", "goodput/s",
                "ttft p99 s", "tbt p99 ms", "hit %");
    const auto cell = [](const std::optional<double>& v, double by) {
      return v ? strf("%.4g", *v * by) : std::string("-");
    };
    for (size_t i = 0; i < curve.points.size(); ++i) {
      const PlanPoint& point = curve.points[i];
      out += strf("  %-24s %7.2f %% %9s %10s %11s %6s%s\n",
                  (point.setting[0].first + "=" + point.setting[0].second).c_str(),
                  100 * point.effective, cell(point.goodput_rps, 1).c_str(),
                  cell(point.ttft_p99_s, 1).c_str(), cell(point.tbt_p99_ms, 1).c_str(),
                  cell(point.hit_ratio, 100).c_str(), i == curve.chosen ? "  <-" : "");
    }
  }
  out += strf("\n%llu nodes: %llu prefill and %llu decode, %llu cached tokens a node, %g Gbit/s: ",
              static_cast<ull>(o.nodes), static_cast<ull>(p.prefill), static_cast<ull>(p.decode),
              static_cast<ull>(p.cache_tokens), p.nic_gbps);
  out += strf("%.2f %% keep their promises, ", 100 * p.effective);
  out += p.met ? strf("the target is %g %%\n", 100 * o.target)
               : strf("short of the target of %g %%: more nodes are needed, or looser promises\n",
                      100 * o.target);
  return out + "simulated; every point is a separate run\n";
}

Json plan_json(const Planned& p, const PlanOptions& o) {
  Json curves = Json::array();
  for (const PlanCurve& curve : p.curves) {
    Json points = Json::array();
    for (const PlanPoint& point : curve.points)
      points.push_back({{"setting", {{point.setting[0].first, point.setting[0].second}}},
                        {"effective_ratio", point.effective},
                        {"goodput_rps", or_null(point.goodput_rps)},
                        {"ttft_p99_s", or_null(point.ttft_p99_s)},
                        {"tbt_p99_ms", or_null(point.tbt_p99_ms)},
                        {"hit_ratio_tokens", or_null(point.hit_ratio)}});
    curves.push_back({{"of", curve.of}, {"points", points}, {"chosen", curve.chosen}});
  }
  return {
      {"schema", "mc-replay-plan/1"}, {"mode", "sim"},      {"nodes", o.nodes},
      {"target", o.target},           {"met", p.met},       {"effective_ratio", p.effective},
      {"prefill", p.prefill},         {"decode", p.decode}, {"cache_tokens", p.cache_tokens},
      {"nic_gbps", p.nic_gbps},       {"curves", curves},   {"options", options_json(o.study.sim)}};
}

}  // namespace mc::sim
