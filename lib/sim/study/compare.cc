#include "sim/study/compare.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/units.h"

namespace mc::sim {
namespace {

struct Compared {
  const char* name;
  std::vector<const char*> path;  // in a report
};

const std::vector<Compared>& figures() {
  static const std::vector<Compared> all = [] {
    std::vector<Compared> out = {
        {"effective", {"effective_ratio"}},     {"goodput/s", {"goodput_rps"}},
        {"completed/s", {"completed_rps"}},     {"rejected", {"requests", "rejected"}},
        {"failed", {"requests", "failed"}},     {"hit ratio", {"cache", "hit_ratio_tokens"}},
        {"hit tokens", {"cache", "hit_tokens"}}};
    static const char* const kMetrics[] = {"ttft_s",       "queue_s", "prefill_s", "transfer_s",
                                           "first_step_s", "tbt_ms",  "tpot_ms",   "e2e_s"};
    for (const char* metric : kMetrics) out.push_back({metric, {"metrics", metric, "mean"}});
    for (const char* metric : {"ttft_s", "tbt_ms", "e2e_s"})
      for (const char* stat : {"p50", "p99"}) out.push_back({metric, {"metrics", metric, stat}});
    return out;
  }();
  return all;
}

std::optional<double> value_at(const Json& report, const std::vector<const char*>& path) {
  const Json* here = &report;
  for (const char* key : path) {
    if (!here->is_object() || !here->contains(key)) return std::nullopt;
    here = &(*here)[key];
  }
  if (!here->is_number()) return std::nullopt;
  const double value = here->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::string text_at(const Json& report, const char* key) {
  return report.contains(key) && report[key].is_string() ? report[key].get<std::string>() : "";
}

bool is_report(const Json& json) {
  return json.is_object() && text_at(json, "schema") == "mc-replay/1";
}

Outcome outcome_of(const std::vector<const Json*>& runs, std::string label) {
  Outcome out;
  out.label = std::move(label);
  out.mode = text_at(*runs[0], "mode");
  out.requests = static_cast<uint64_t>(
      std::clamp(value_at(*runs[0], {"trace", "requests"}).value_or(0), 0., 1e15));
  for (const Compared& f : figures()) {
    std::vector<double> values;
    for (const Json* run : runs)
      if (const auto v = value_at(*run, f.path)) values.push_back(*v);
    out.figures.push_back(values.empty() ? std::nullopt : std::optional(interval(values)));
  }
  return out;
}

std::string setting_of(const Json& point) {
  std::string out;
  if (!point.contains("setting") || !point["setting"].is_object()) return out;
  for (const auto& [name, value] : point["setting"].items())
    out += (out.empty() ? "" : " ") + name + "=" +
           (value.is_string() ? value.get<std::string>() : dump_json(value));
  return out;
}

Failure neither(const std::string& file) {
  return fail(Code::kInvalid,
              "%s: not a result: want the JSON of mc-replay run or sim (--output json, or --report "
              "FILE.json)",
              file.c_str());
}

std::string interval_cell(const std::optional<Interval>& i) {
  if (!i) return "-";
  return i->n > 1 ? strf("%.4g+-%.2g", i->mean, i->half) : strf("%.4g", i->mean);
}

std::optional<double> ratio_of(const std::optional<Interval>& base,
                               const std::optional<Interval>& other) {
  if (!base || !other || base->mean == 0) return std::nullopt;
  return other->mean / base->mean;
}

}  // namespace

const char* name(Difference difference) {
  switch (difference) {
    case Difference::kUnknown: return "unknown";
    case Difference::kSame: return "same";
    case Difference::kDiffers: return "differs";
  }
  return "unknown";
}

const std::vector<std::string>& compared_figures() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Compared& f : figures()) {
      const bool metric = f.path.size() == 3;
      out.push_back(metric ? std::string(f.name) + " " + f.path[2] : f.name);
    }
    return out;
  }();
  return names;
}

Result<std::vector<Outcome>> results_of(const Json& json, const std::string& file) {
  if (is_report(json)) return std::vector<Outcome>{outcome_of({&json}, file)};
  if (!json.is_object() || text_at(json, "schema") != "mc-replay-study/1" ||
      !json.contains("points") || !json["points"].is_array() || json["points"].empty())
    return neither(file);
  std::vector<Outcome> out;
  for (const Json& point : json["points"]) {
    if (!point.is_object() || !point.contains("runs") || !point["runs"].is_array())
      return neither(file);
    std::vector<const Json*> runs;
    for (const Json& run : point["runs"]) {
      if (!is_report(run)) return neither(file);
      runs.push_back(&run);
    }
    if (runs.empty()) return neither(file);
    const std::string setting = setting_of(point);
    out.push_back(outcome_of(runs, setting.empty() ? file : file + " " + setting));
  }
  return out;
}

Difference difference(const std::optional<Interval>& base, const std::optional<Interval>& other) {
  if (!base || !other || base->n < 2 || other->n < 2) return Difference::kUnknown;
  return std::abs(base->mean - other->mean) > base->half + other->half ? Difference::kDiffers
                                                                       : Difference::kSame;
}

std::string comparison_text(const std::vector<Outcome>& results) {
  std::string out;
  for (size_t i = 0; i < results.size(); ++i)
    out += strf("%c  %s  %s, %llu requests\n", static_cast<char>('A' + i % 26),
                results[i].label.c_str(), results[i].mode.c_str(),
                static_cast<unsigned long long>(results[i].requests));
  out += strf("\n%-18s %16s", "", "A");
  for (size_t i = 1; i < results.size(); ++i)
    out += strf(" %16c %7s %-8s", static_cast<char>('A' + i % 26), "/A", "");
  out += "\n";
  bool repeated = true;
  for (size_t f = 0; f < compared_figures().size(); ++f) {
    const auto& base = results[0].figures[f];
    std::string line =
        strf("%-18s %16s", compared_figures()[f].c_str(), interval_cell(base).c_str());
    bool any = base.has_value();
    for (size_t i = 1; i < results.size(); ++i) {
      const auto& other = results[i].figures[f];
      const auto r = ratio_of(base, other);
      const Difference v = difference(base, other);
      any = any || other.has_value();
      repeated = repeated && (v != Difference::kUnknown || !base || !other);
      line += strf(" %16s %7s %-8s", interval_cell(other).c_str(),
                   r ? strf("%.3f", *r).c_str() : "-", v == Difference::kUnknown ? "" : name(v));
    }
    if (any) out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  if (!repeated)
    out += "single runs: whether they differ by more than chance is not known; use --repeat\n";
  return out;
}

Json comparison_json(const std::vector<Outcome>& results) {
  Json columns = Json::array(), rows = Json::array();
  for (const Outcome& r : results)
    columns.push_back({{"label", r.label}, {"mode", r.mode}, {"requests", r.requests}});
  for (size_t f = 0; f < compared_figures().size(); ++f) {
    Json values = Json::array();
    const auto& base = results[0].figures[f];
    for (const Outcome& r : results) {
      const auto& i = r.figures[f];
      if (!i) {
        values.push_back(nullptr);
        continue;
      }
      const auto by = ratio_of(base, i);
      Json value = {{"mean", i->mean},
                    {"ci95", i->n > 1 ? Json(i->half) : Json(nullptr)},
                    {"runs", i->n},
                    {"ratio", by ? Json(*by) : Json(nullptr)}};
      if (&r != &results[0]) value["verdict"] = name(difference(base, i));
      values.push_back(std::move(value));
    }
    rows.push_back({{"figure", compared_figures()[f]}, {"values", std::move(values)}});
  }
  return {{"schema", "mc-replay-compare/1"},
          {"results", std::move(columns)},
          {"figures", std::move(rows)}};
}

}  // namespace mc::sim
