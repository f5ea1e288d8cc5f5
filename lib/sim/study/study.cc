#include "sim/study/study.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json.h"
#include "base/units.h"
#include "sim/study/parallel.h"

namespace mc::sim {
namespace {

using ull = unsigned long long;
constexpr size_t kRunsMax = 1000;

std::string setting_text(const Setting& setting) {
  std::string out;
  for (const auto& [name, value] : setting) out += (out.empty() ? "" : " ") + name + "=" + value;
  return out.empty() ? "-" : out;
}

struct Dimension {
  std::string name;
  std::vector<std::string> values;
};

Result<std::vector<Dimension>> dimensions(const std::vector<std::string>& sweep) {
  std::vector<Dimension> out;
  for (const std::string& word : sweep) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos && out.empty())
      return fail(Code::kInvalid, "--sweep %s: want NAME=VALUE,VALUE", escape(word).c_str());
    if (equals != std::string::npos) out.push_back({word.substr(0, equals), {}});
    std::string values = equals == std::string::npos ? word : word.substr(equals + 1);
    for (size_t at = 0; at <= values.size();) {
      const size_t comma = std::min(values.find(',', at), values.size());
      out.back().values.push_back(values.substr(at, comma - at));
      at = comma + 1;
    }
  }
  return out;
}

// Pairs of dimensions that set the same option. --sweep refuses them: points would have wrong
// labels.
constexpr struct {
  const char *one, *other, *what;
} kContradictions[] = {{"pd", "prefill", "the number of prefill nodes"},
                       {"pd", "decode", "the number of decode nodes"},
                       {"speed", "qps", "when requests come"}};

Result<> check_dimensions(const std::vector<Dimension>& dims, const trace::PlayOptions& play) {
  const auto there = [&](const char* name) {
    return std::any_of(dims.begin(), dims.end(), [&](const auto& d) { return d.name == name; });
  };
  for (size_t i = 0; i < dims.size(); ++i) {
    for (size_t j = 0; j < i; ++j)
      if (dims[i].name == dims[j].name)
        return fail(Code::kInvalid, "--sweep %s is given twice", dims[i].name.c_str());
    std::vector<std::string> values = dims[i].values;
    std::sort(values.begin(), values.end());
    const auto again = std::adjacent_find(values.begin(), values.end());
    if (again != values.end())
      return fail(Code::kInvalid, "--sweep %s=%s is given twice", dims[i].name.c_str(),
                  escape(*again).c_str());
  }
  for (const auto& [one, other, what] : kContradictions)
    if (there(one) && there(other))
      return fail(Code::kInvalid, "--sweep %s and --sweep %s both set %s: leave one out", one,
                  other, what);
  if ((there("speed") && play.qps != 0) || (there("qps") && play.speed != 1))
    return fail(Code::kInvalid, "--speed and --qps both set when requests come: leave one out");
  return {};
}

Result<> set_number(const std::string& name, const std::string& value, double& to) {
  const auto n = parse_number(value);
  if (!n || !std::isfinite(*n) || *n < 0)
    return fail(Code::kInvalid, "--sweep %s=%s: want a number from 0", name.c_str(),
                escape(value).c_str());
  to = *n;
  return {};
}

Result<> set(StudyOptions& o, const std::string& name, const std::string& value) {
  if (name == "speed") return set_number(name, value, o.play.speed);
  if (name == "qps") return set_number(name, value, o.play.qps);
  OptionList list;
  o.sim.describe(list);
  if (name == "pd") {
    const size_t colon = value.find(':');
    if (colon == std::string::npos)
      return fail(Code::kInvalid, "--sweep pd=%s: want PREFILL:DECODE", escape(value).c_str());
    MC_TRY_(set(o, "prefill", value.substr(0, colon)));
    return set(o, "decode", value.substr(colon + 1));
  }
  MC_TRY(Option* const option, list.find(name, "--sweep"));
  auto done = option->set(value);
  if (!done)
    return fail(Code::kInvalid, "--sweep %s=%s: %s", name.c_str(), escape(value).c_str(),
                done.error().what.c_str());
  if (!option->choices.empty() &&
      std::find(option->choices.begin(), option->choices.end(), value) == option->choices.end())
    return fail(Code::kInvalid, "--sweep %s=%s: no such choice", name.c_str(),
                escape(value).c_str());
  return {};
}

Result<std::vector<std::pair<Setting, StudyOptions>>> points(const StudyOptions& base) {
  MC_TRY(const auto dims, dimensions(base.sweep));
  MC_TRY_(check_dimensions(dims, base.play));
  std::vector<std::pair<Setting, StudyOptions>> out = {{{}, base}};
  for (const Dimension& d : dims) {
    std::vector<std::pair<Setting, StudyOptions>> next;
    for (const auto& [setting, options] : out)
      for (const std::string& value : d.values) {
        next.emplace_back(setting, options);
        next.back().first.emplace_back(d.name, value);
        MC_TRY_(set(next.back().second, d.name, value));
        if (next.size() > kRunsMax)
          return fail(Code::kInvalid, "--sweep makes more than %zu runs", kRunsMax);
      }
    out = std::move(next);
  }
  for (const auto& [setting, options] : out)
    if (const auto good = check(options.sim); !good && !setting.empty())
      return fail(Code::kInvalid, "--sweep %s: %s", setting_text(setting).c_str(),
                  good.error().what.c_str());
  return out;
}

std::optional<double> objective(Duration d) {
  return d.count() > 0 ? std::optional(to_ms(d)) : std::nullopt;
}

trace::RunInfo describe(const trace::Trace& trace, const std::vector<trace::Arrived>& arrivals,
                        const cost::ModelSpec& spec, const StudyOptions& o) {
  trace::RunInfo info;
  info.mode = "sim";
  info.model = spec.name;
  info.seed = o.play.seed;
  info.trace_path = trace.name;
  info.block_tokens = trace.block_tokens;
  info.trace_requests = arrivals.size();
  info.speed = o.play.speed;
  if (o.play.qps > 0) info.qps = o.play.qps;
  constexpr const char* kNames[] = {"trace", "poisson", "uniform", "gamma"};
  const bool poisson = o.play.qps > 0 && o.play.arrival == trace::Arrival::kTrace;
  info.arrival = kNames[poisson ? 1 : static_cast<size_t>(o.play.arrival)];
  info.slo = {objective(o.sim.admission.ttft_slo), objective(o.sim.admission.tbt_slo)};
  info.policy = o.sim.policy.policy;
  info.admission = o.sim.admission.admission;
  info.prefill_nodes = o.sim.prefill;
  info.decode_nodes = o.sim.decode;
  double input = 0, output = 0;
  for (const trace::Arrived& a : arrivals) {
    input += static_cast<double>(a.record->input_length);
    output += static_cast<double>(a.record->output_length);
  }
  const auto n = static_cast<double>(arrivals.size());
  info.trace_mean_input = input / n;
  info.trace_mean_output = output / n;
  info.trace_span_s = static_cast<double>(arrivals.back().record->timestamp_ms -
                                          arrivals.front().record->timestamp_ms) /
                      1000;
  return info;
}

Result<Run> run_one(const trace::Trace& trace, const cost::ModelSpec& spec, StudyOptions o,
                    Setting setting, uint64_t seed) {
  o.play.seed = o.sim.policy.seed = seed;
  if (o.sim.cache_rule != "lru" &&
      std::none_of(trace.records.begin(), trace.records.end(), [](const trace::TraceRequest& r) {
        return r.cache_class != trace::CacheClass::kNormal;
      }))
    return fail(Code::kInvalid,
                "--cache-rule %s: no request of %s has a class: give some \"class\": \"ephemeral\" "
                "or \"context\", or leave the rule out",
                o.sim.cache_rule.c_str(), trace.name.c_str());
  Run run;
  run.setting = std::move(setting);
  run.seed = seed;
  MC_TRY(const auto arrivals, trace::schedule(trace, o.play));
  run.info = describe(trace, arrivals, spec, o);
  MC_TRY(run.result, simulate(trace, arrivals, spec, o.sim));
  run.info.duration_s = run.result.duration_s;
  run.summary = trace::summarize(run.result.requests, run.info);
  return run;
}

// The figures of tables and intervals; absent where nothing was measured.
struct Figure {
  const char* name;
  std::optional<double> (*of)(const Run&);
};

std::optional<double> mean(const trace::Distribution& d, double scale) {
  if (d.empty()) return std::nullopt;
  return d.mean() / scale;
}
std::optional<double> p99(const trace::Distribution& d, double scale) {
  if (d.empty()) return std::nullopt;
  return d.percentile(99) / scale;
}

const Figure kFigures[] = {
    {"effective_ratio", [](const Run& r) { return r.summary.effective_ratio; }},
    {"goodput_rps", [](const Run& r) { return r.summary.goodput_rps; }},
    {"ttft_mean_s", [](const Run& r) { return mean(r.summary.ttft_ms, 1e3); }},
    {"ttft_p99_s", [](const Run& r) { return p99(r.summary.ttft_ms, 1e3); }},
    {"tbt_mean_ms", [](const Run& r) { return mean(r.summary.tbt_ms, 1); }},
    {"tbt_p99_ms", [](const Run& r) { return p99(r.summary.tbt_ms, 1); }},
    {"tpot_mean_ms", [](const Run& r) { return mean(r.summary.tpot_ms, 1); }},
    {"hit_ratio_tokens", [](const Run& r) { return r.summary.hit_ratio_tokens(); }},
    {"rejected",
     [](const Run& r) { return std::optional(static_cast<double>(r.summary.rejected)); }},
    {"wasted_prefill_s", [](const Run& r) { return std::optional(r.result.wasted_prefill_s); }},
};

// Runs with the same setting are adjacent.
std::vector<std::vector<const Run*>> groups(const std::vector<Run>& runs) {
  std::vector<std::vector<const Run*>> out;
  for (const Run& r : runs) {
    if (out.empty() || out.back()[0]->setting != r.setting) out.emplace_back();
    out.back().push_back(&r);
  }
  return out;
}

std::optional<Interval> interval_of(const std::vector<const Run*>& runs, const Figure& figure) {
  std::vector<double> values;
  for (const Run* r : runs)
    if (const auto v = figure.of(*r)) values.push_back(*v);
  if (values.empty()) return std::nullopt;
  return interval(values);
}

}  // namespace

Interval interval(const std::vector<double>& values) {
  // 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom; 1.96 beyond.
  constexpr double kT[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                           2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                           2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  Interval out;
  out.n = values.size();
  if (values.empty()) return out;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) out.mean += v / n;
  if (values.size() < 2) return out;
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  const size_t freedom = values.size() - 1;
  const double t = freedom <= std::size(kT) ? kT[freedom - 1] : 1.96;
  out.half = t * std::sqrt(squares / (n - 1) / n);
  return out;
}

Result<> check_sweep(const StudyOptions& options) {
  MC_TRY(const auto all, points(options));
  if (options.repeat > kRunsMax / all.size())
    return fail(Code::kInvalid, "--sweep and --repeat make more than %zu runs", kRunsMax);
  if (options.repeat < 1) return fail(Code::kInvalid, "--repeat 0: want at least 1");
  return check(options.sim);
}

Result<std::vector<Run>> run_study(const trace::Trace& trace, const cost::ModelSpec& spec,
                                   const StudyOptions& options) {
  MC_TRY_(check_sweep(options));
  MC_TRY(auto all, points(options));
  const bool single = all.size() == 1 && options.repeat == 1;
  std::vector<std::optional<Result<Run>>> runs(all.size() * options.repeat);
  in_parallel(runs.size(), options.threads, [&](size_t i) {
    const auto& [setting, o] = all[i / options.repeat];
    runs[i] = run_one(trace, spec, o, setting, options.play.seed + i % options.repeat);
    if (!single && *runs[i]) std::vector<trace::RequestResult>().swap((*runs[i])->result.requests);
  });
  std::vector<Run> out;
  for (auto& made : runs) {
    MC_TRY(Run run, std::move(*made));
    out.push_back(std::move(run));
  }
  return out;
}

Json options_json(const SimOptions& options) {
  SimOptions copy = options;
  OptionList list;
  copy.describe(list);
  Json out = Json::object();
  for (const Option& o : list.all()) out[o.name] = o.get();
  return out;
}

Json sim_json(const SimResult& r, const trace::Summary& s) {
  Json moves = Json::array(), busy = Json::array();
  for (const Move& m : r.moves)
    moves.push_back({{"at_s", m.at_s}, {"node", m.node}, {"to", m.to}, {"reason", m.reason}});
  for (const double b : r.prefill_busy_share) busy.push_back(b);
  const auto ok = static_cast<double>(s.ok);
  return {{"prefill_busy_s", r.prefill_busy_s},
          {"prefill_s_per_request", s.ok ? Json(r.prefill_busy_s / ok) : Json(nullptr)},
          {"wasted_prefill_s", r.wasted_prefill_s},
          {"rejected_after_prefill", r.rejected_after_prefill},
          {"fetches", r.fetches},
          {"fetched_bytes", r.fetched_bytes},
          {"moved_bytes", r.moved_bytes},
          {"pool_reads", r.pool_reads},
          {"pool_blocks", r.pool_blocks},
          {"pool_read_bytes", r.pool_read_bytes},
          {"pool_put_bytes", r.pool_put_bytes},
          {"pool_evicted", r.pool_evicted},
          {"full_blocks", r.full_blocks},
          {"hit_full_blocks", r.hit_full_blocks},
          {"hit_vram_blocks", r.hit_vram_blocks},
          {"hit_ssd_blocks", r.hit_ssd_blocks},
          {"failures", r.failures},
          {"restarted", r.restarted},
          {"decode_steps", r.steps},
          {"decode_batch_mean", r.steps > 0 ? Json(r.token_steps / r.steps) : Json(nullptr)},
          {"preemptions", r.preemptions},
          {"preempted_to_host", r.preempted_to_host},
          {"events", r.events},
          {"prefill_busy_share", std::move(busy)},
          {"moves", std::move(moves)}};
}

std::string sim_text(const SimResult& r, const trace::Summary& s) {
  std::string out = strf(
      "simulated       prefill busy %.1f s, %.3f s a request; wasted %.1f s on %llu refused "
      "afterwards\n",
      r.prefill_busy_s, s.ok ? r.prefill_busy_s / static_cast<double>(s.ok) : 0.0,
      r.wasted_prefill_s, static_cast<ull>(r.rejected_after_prefill));
  out += strf(
      "                %llu of %llu full blocks reused; %llu prefixes fetched, %.1f GB; decode "
      "batch %.2f\n",
      static_cast<ull>(r.hit_full_blocks), static_cast<ull>(r.full_blocks),
      static_cast<ull>(r.fetches), r.fetched_bytes / 1e9,
      r.steps > 0 ? r.token_steps / r.steps : 0.0);
  if (r.pool_put_bytes > 0)
    out += strf(
        "                pool: %.1f GB put, %llu objects evicted; %llu prefixes read, %.1f GB\n",
        r.pool_put_bytes / 1e9, static_cast<ull>(r.pool_evicted), static_cast<ull>(r.pool_reads),
        r.pool_read_bytes / 1e9);
  if (r.hit_vram_blocks + r.hit_ssd_blocks > 0)
    out += strf("                of the reused blocks %llu were in VRAM and %llu on an SSD\n",
                static_cast<ull>(r.hit_vram_blocks), static_cast<ull>(r.hit_ssd_blocks));
  if (r.preemptions > 0)
    out +=
        strf("                %llu preemptions for want of blocks, %llu of them to host memory\n",
             static_cast<ull>(r.preemptions), static_cast<ull>(r.preempted_to_host));
  if (r.failures > 0)
    out += strf("                %llu failures of nodes; %llu requests began anew\n",
                static_cast<ull>(r.failures), static_cast<ull>(r.restarted));
  for (const Move& m : r.moves)
    out += strf("                %.0f s: %s to %s (%s)\n", m.at_s, m.node.c_str(), m.to.c_str(),
                m.reason.c_str());
  return out;
}

std::string study_text(const std::vector<Run>& runs) {
  std::string out = strf("%-36s", "setting");
  for (const Figure& f : kFigures) out += strf(" %17s", f.name);
  out += "\n";
  double best = -INFINITY;
  for (const auto& group : groups(runs))
    if (const auto i = interval_of(group, kFigures[0])) best = std::max(best, i->mean);
  for (const auto& group : groups(runs)) {
    out += strf("%-36s", setting_text(group[0]->setting).c_str());
    for (const Figure& f : kFigures) {
      const auto i = interval_of(group, f);
      out += strf(" %17s", !i         ? "-"
                           : i->n > 1 ? strf("%.4g+-%.2g", i->mean, i->half).c_str()
                                      : strf("%.4g", i->mean).c_str());
    }
    const auto i = interval_of(group, kFigures[0]);
    out += i && i->mean == best ? "  most effective\n" : "\n";
  }
  return out;
}

Json study_json(const std::vector<Run>& runs, const StudyOptions& options) {
  Json points = Json::array();
  for (const auto& group : groups(runs)) {
    Json setting = Json::object(), figures = Json::object(), each = Json::array();
    for (const auto& [name, value] : group[0]->setting) setting[name] = value;
    for (const Figure& f : kFigures) {
      const auto i = interval_of(group, f);
      figures[f.name] =
          i ? Json{{"mean", i->mean}, {"ci95", i->n > 1 ? Json(i->half) : Json(nullptr)}}
            : Json(nullptr);
    }
    for (const Run* r : group) {
      Json run = trace::report_json(r->summary, r->info);
      run["sim"] = sim_json(r->result, r->summary);
      each.push_back(std::move(run));
    }
    points.push_back({{"setting", setting}, {"figures", figures}, {"runs", each}});
  }
  return {{"schema", "mc-replay-study/1"},
          {"mode", "sim"},
          {"seed", options.play.seed},
          {"repeat", options.repeat},
          {"options", options_json(options.sim)},
          {"points", points}};
}

std::string timeline_csv(const SimResult& result) {
  std::string out =
      "at_s,prefill_nodes,decode_nodes,prefill_load,decode_load,queued,decoding,rejected\n";
  for (const Sample& s : result.timeline)
    out += strf("%.3f,%llu,%llu,%.6f,%.6f,%llu,%llu,%llu\n", s.at_s,
                static_cast<ull>(s.prefill_nodes), static_cast<ull>(s.decode_nodes), s.prefill_load,
                s.decode_load, static_cast<ull>(s.queued), static_cast<ull>(s.decoding),
                static_cast<ull>(s.rejected));
  return out;
}

}  // namespace mc::sim
