// What the charts of a report show.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/units.h"
#include "trace/report/page.h"

namespace mc::trace {
namespace {

constexpr size_t kWindowsMax = 60, kDotsMax = 2500, kCurveMax = 200;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kSpread = 30;  // from the 10th to the 99th percentile: beyond it a log scale
using Values = std::vector<std::pair<double, double>>;  // at seconds
using Measure = std::function<std::optional<double>(const RequestResult&)>;

// The run cut into equal windows of a round length.
struct Windows {
  double length = 1;  // seconds
  size_t count = 1;

  explicit Windows(double duration) {
    const auto marks = axis_marks(0, std::max(duration, 1e-3), false, kWindowsMax);
    if (marks.size() > 1) length = marks[1] - marks[0];
    count = std::max<size_t>(1, static_cast<size_t>(std::ceil(duration / length - 1e-9)));
  }
  size_t of(double at) const {
    return at <= 0 ? 0 : std::min(count - 1, static_cast<size_t>(at / length));
  }
  double middle(size_t i) const { return (static_cast<double>(i) + 0.5) * length; }
  std::string text() const {
    return length < 1 ? strf("%g ms", length * 1e3) : strf("%g s", length);
  }
};

double seconds(double ms) { return ms / 1e3; }

// Of TTFT: milliseconds where nearly all are below a tenth of a second.
struct TimeUnit {
  double per_ms = 1e-3;
  const char* name = "s";
};

// An objective far above all values would flatten them: then the note has it.
bool in_sight(double objective, const Values& values) {
  double most = 0;
  for (const auto& [at, v] : values) most = std::max(most, v);
  return std::isfinite(objective) && objective <= 2 * most;
}

double duration_of(const std::vector<RequestResult>& results, const RunInfo& info) {
  double end = info.duration_s.value_or(0);
  for (const RequestResult& r : results)
    end = std::max(end, seconds(r.t_intended_ms + r.e2e_ms.value_or(r.ttft_ms.value_or(0))));
  return end;
}

Values values_of(const std::vector<RequestResult>& results, const Measure& measure) {
  Values all;
  for (const RequestResult& r : results)
    if (const auto v = measure(r)) all.emplace_back(seconds(r.t_intended_ms), *v);
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::vector<double>> by_window(const Values& values, const Windows& w) {
  std::vector<std::vector<double>> all(w.count);
  for (const auto& [at, v] : values) all[w.of(at)].push_back(v);
  return all;
}

ChartSeries percentile_line(const Values& values, const Windows& w, double percent, size_t colour) {
  ChartSeries s;
  s.name = strf("p%g", percent);
  s.colour = colour;
  const auto parts = by_window(values, w);
  for (size_t i = 0; i < w.count; ++i)
    s.points.emplace_back(w.middle(i),
                          parts[i].empty() ? kNone : Distribution(parts[i]).percentile(percent));
  return s;
}

bool spreads(const Values& values) {
  std::vector<double> all;
  for (const auto& [at, v] : values) all.push_back(v);
  const Distribution d(std::move(all));
  return d.min() > 0 && d.percentile(99) > kSpread * d.percentile(10);
}

ChartSeries dots_of(const Values& values) {
  ChartSeries s;
  const size_t every = (values.size() + kDotsMax - 1) / kDotsMax;
  s.name = every > 1 ? strf("a request, 1 of %zu", every) : "a request";
  s.style = ChartSeries::Style::kDots;
  for (size_t i = 0; i < values.size(); i += std::max<size_t>(every, 1))
    s.points.push_back(values[i]);
  return s;
}

Chart over_time(const std::string& id, const std::string& name, const std::string& unit,
                const Values& values, const Windows& w, double objective) {
  Chart c;
  c.id = id;
  c.title = name + " over time";
  c.x_label = "seconds after the start";
  c.y_label = name + " (" + unit + ")";
  c.log_y = !values.empty() && spreads(values);
  c.note = "percentiles of the requests sent in each " + w.text() +
           (c.log_y ? "; logarithmic scale" : "");
  c.series.push_back(dots_of(values));
  c.series.push_back(percentile_line(values, w, 50, 1));
  c.series.push_back(percentile_line(values, w, 90, 2));
  c.series.push_back(percentile_line(values, w, 99, 3));
  const std::string promise = strf("objective %g %s", objective, unit.c_str());
  if (in_sight(objective, values))
    c.limits.push_back({objective, promise});
  else if (std::isfinite(objective))
    c.note += "; all far below the " + promise;
  c.x_from = 0;
  return c;
}

// The share of requests up to each value.
Chart distribution(const std::string& id, const std::string& name, const std::string& unit,
                   const Values& values, double objective) {
  Chart c;
  c.id = id;
  c.title = name + ": how many requests are within it";
  c.x_label = name + " (" + unit + ")";
  c.y_label = "requests (%)";
  c.y_to = 100;
  c.log_x = !values.empty() && spreads(values);
  if (values.empty()) return c;
  std::vector<double> all;
  for (const auto& [at, v] : values) all.push_back(v);
  const Distribution d(std::move(all));
  ChartSeries s;
  s.name = "requests";
  s.colour = 1;
  const size_t n = std::min(d.n(), kCurveMax);
  for (size_t i = 0; i <= n; ++i) {
    const double percent = 100.0 * static_cast<double>(i) / static_cast<double>(n);
    s.points.emplace_back(d.percentile(percent), percent);
  }
  c.series.push_back(std::move(s));
  for (const double p : {50.0, 90.0, 99.0}) {
    c.limits.push_back({d.percentile(p), strf("p%g", p), true, true});
    c.note += strf("%sp%g %.4g %s", c.note.empty() ? "" : ", ", p, d.percentile(p), unit.c_str());
  }
  if (std::isfinite(objective)) {
    if (in_sight(objective, values)) c.limits.push_back({objective, "objective", true});
    c.note += strf(", %.1f %% within the objective", 100 * d.share_up_to(objective));
  }
  if (!c.log_x) c.x_from = 0;
  if (c.log_x) c.note += "; logarithmic scale";
  return c;
}

Chart parts_of_ttft(const std::vector<RequestResult>& results, const Windows& w, TimeUnit unit) {
  static const std::pair<const char*, std::optional<double> RequestResult::*> kParts[] = {
      {"queue", &RequestResult::queue_ms},
      {"prefill", &RequestResult::prefill_ms},
      {"transfer", &RequestResult::transfer_ms},
      {"first step", &RequestResult::first_step_ms}};
  Chart c;
  c.id = "ttft-parts";
  c.title = "Where TTFT goes";
  c.x_label = "seconds after the start";
  c.y_label = strf("mean of each part (%s)", unit.name);
  c.note = "of the requests sent in each " + w.text();
  c.x_from = 0;
  std::vector<double> below(w.count, 0);
  size_t colour = 1;
  for (const auto& [name, part] : kParts) {
    const auto all = by_window(values_of(results,
                                         [part = part, unit](const RequestResult& r) {
                                           return r.*part ? std::optional(*(r.*part) * unit.per_ms)
                                                          : std::nullopt;
                                         }),
                               w);
    if (std::all_of(all.begin(), all.end(), [](const auto& v) { return v.empty(); })) continue;
    ChartSeries s;
    s.name = name;
    s.style = ChartSeries::Style::kArea;
    s.colour = colour++;
    s.base = below;
    for (size_t i = 0; i < w.count; ++i) {
      below[i] += Distribution(all[i]).mean();
      s.points.emplace_back(w.middle(i), below[i]);
    }
    c.series.push_back(std::move(s));
  }
  return c;
}

Chart cached(const std::vector<RequestResult>& results, const Windows& w, const RunInfo& info) {
  Chart c;
  c.id = "hits";
  c.title = "Prompt tokens from caches";
  c.x_label = "seconds after the start";
  c.y_label = "prompt tokens (%)";
  c.note = "of the requests sent in each " + w.text();
  c.y_to = 100;
  c.x_from = 0;
  std::vector<double> hit(w.count, 0), input(w.count, 0);
  for (const RequestResult& r : results) {
    if (!r.cached || r.status != Status::kOk) continue;
    hit[w.of(seconds(r.t_intended_ms))] += static_cast<double>(*r.cached);
    input[w.of(seconds(r.t_intended_ms))] += static_cast<double>(r.input);
  }
  ChartSeries now{"in the window", ChartSeries::Style::kLine, {}, {}, 1, false};
  ChartSeries so_far{"since the start", ChartSeries::Style::kLine, {}, {}, 2, true};
  double all_hit = 0, all_input = 0;
  for (size_t i = 0; i < w.count; ++i) {
    all_hit += hit[i];
    all_input += input[i];
    now.points.emplace_back(w.middle(i), input[i] > 0 ? 100 * hit[i] / input[i] : kNone);
    so_far.points.emplace_back(w.middle(i), all_input > 0 ? 100 * all_hit / all_input : kNone);
  }
  c.series = {std::move(now), std::move(so_far)};
  if (info.reachable_hit_tokens && all_input > 0) {
    const double most = 100 * static_cast<double>(*info.reachable_hit_tokens) / all_input;
    c.limits.push_back({std::min(most, 100.0), strf("reachable %.1f %%", std::min(most, 100.0))});
  }
  return c;
}

// The mean number of requests in a state in each window.
class Occupancy {
 public:
  explicit Occupancy(const Windows& w) : w_(w), spent_(w.count, 0) {}
  void add(double from, double to) {
    for (size_t i = w_.of(from); i <= w_.of(to); ++i) {
      const double begin = static_cast<double>(i) * w_.length;
      spent_[i] += std::max(0.0, std::min(to, begin + w_.length) - std::max(from, begin));
    }
  }
  ChartSeries series(std::string name, size_t colour) const {
    ChartSeries s{std::move(name), ChartSeries::Style::kLine, {}, {}, colour, false};
    for (size_t i = 0; i < w_.count; ++i)
      s.points.emplace_back(w_.middle(i), spent_[i] / w_.length);
    return s;
  }

 private:
  const Windows w_;
  std::vector<double> spent_;
};

Chart queues(const std::vector<RequestResult>& results, const Windows& w) {
  Chart c;
  c.id = "queues";
  c.title = "Requests in flight";
  c.x_label = "seconds after the start";
  c.y_label = "requests (mean)";
  c.note = "in each " + w.text();
  c.x_from = 0;
  Occupancy waiting(w), answered(w);
  for (const RequestResult& r : results) {
    const double begin = seconds(r.t_intended_ms);
    if (r.ttft_ms) waiting.add(begin, begin + seconds(*r.ttft_ms));
    if (r.ttft_ms && r.e2e_ms && *r.e2e_ms > *r.ttft_ms)
      answered.add(begin + seconds(*r.ttft_ms), begin + seconds(*r.e2e_ms));
  }
  c.series = {waiting.series("wait for the first token", 1), answered.series("are answered", 2)};
  return c;
}

// Per second in each window. `count`: what one of them counts, and when.
ChartSeries rate(
    const std::vector<RequestResult>& results, const Windows& w, std::string name, size_t colour,
    const std::function<std::optional<std::pair<double, double>>(const RequestResult&)>& count) {
  std::vector<double> sums(w.count, 0);
  bool any = false;
  for (const RequestResult& r : results)
    if (const auto what = count(r)) {
      sums[w.of(what->first)] += what->second;
      any = true;
    }
  ChartSeries s{std::move(name), ChartSeries::Style::kLine, {}, {}, colour, false};
  for (size_t i = 0; any && i < w.count; ++i)
    s.points.emplace_back(w.middle(i), sums[i] / w.length);
  return s;
}

std::optional<std::pair<double, double>> end_of(const RequestResult& r, double n) {
  if (r.status != Status::kOk || !r.e2e_ms) return std::nullopt;
  return std::pair(seconds(r.t_intended_ms + *r.e2e_ms), n);
}

Chart rates(const std::vector<RequestResult>& results, const Windows& w) {
  Chart c;
  c.id = "rates";
  c.title = "Requests a second";
  c.x_label = "seconds after the start";
  c.y_label = "requests a second";
  c.note = "in each " + w.text();
  c.x_from = 0;
  const auto arrived = [](const RequestResult& r, bool wanted) {
    return wanted ? std::optional(std::pair(seconds(r.t_intended_ms), 1.0)) : std::nullopt;
  };
  c.series.push_back(rate(results, w, "due", 0, [&](const auto& r) { return arrived(r, true); }));
  c.series.back().dashed = true;
  c.series.push_back(rate(results, w, "completed", 2, [](const auto& r) { return end_of(r, 1); }));
  c.series.push_back(rate(results, w, "refused", 1, [&](const auto& r) {
    return arrived(r, r.status == Status::kRejected);
  }));
  c.series.push_back(rate(results, w, "failed", 3, [&](const auto& r) {
    return arrived(r, r.status != Status::kOk && r.status != Status::kRejected);
  }));
  return c;
}

// `prompts`: those of prompts, when their first token comes; else those of answers, at their end.
Chart tokens(const std::vector<RequestResult>& results, const Windows& w, bool prompts) {
  const std::string kind = prompts ? "prompt" : "output";
  Chart c;
  c.id = kind + "-tokens";
  c.title = (prompts ? "Prompt" : "Output") + std::string(" tokens a second");
  c.x_label = "seconds after the start";
  c.y_label = kind + " tokens a second";
  c.note = std::string("of completed requests, counted at their ") +
           (prompts ? "first token" : "end") + ", in each " + w.text();
  c.x_from = 0;
  c.series.push_back(rate(results, w, kind, prompts ? 1 : 2, [prompts](const RequestResult& r) {
    if (!prompts) return end_of(r, static_cast<double>(r.output));
    if (r.status != Status::kOk || !r.ttft_ms) return std::optional<std::pair<double, double>>();
    return std::optional(
        std::pair(seconds(r.t_intended_ms + *r.ttft_ms), static_cast<double>(r.input)));
  }));
  return c;
}

}  // namespace

std::vector<Chart> report_charts(const std::vector<RequestResult>& results, const RunInfo& info) {
  if (results.empty()) return {};
  const double duration = duration_of(results, info);
  const Windows w(duration);
  std::vector<double> all_ttft;
  for (const RequestResult& r : results)
    if (r.ttft_ms) all_ttft.push_back(*r.ttft_ms);
  const TimeUnit unit =
      Distribution(std::move(all_ttft)).percentile(99) < 100 ? TimeUnit{1, "ms"} : TimeUnit{};
  const Values ttft = values_of(results, [unit](const RequestResult& r) {
    return r.ttft_ms ? std::optional(*r.ttft_ms * unit.per_ms) : std::nullopt;
  });
  const Values tbt = values_of(results, [](const RequestResult& r) { return r.tbt_ms(); });
  const double ttft_slo = info.slo.ttft_ms.value_or(kNone) * unit.per_ms;  // none: NaN
  const double tbt_slo = info.slo.tbt_ms.value_or(kNone);
  std::vector<Chart> all;
  all.push_back(over_time("ttft-time", "TTFT", unit.name, ttft, w, ttft_slo));
  all.push_back(distribution("ttft-share", "TTFT", unit.name, ttft, ttft_slo));
  all.push_back(over_time("tbt-time", "TBT", "ms", tbt, w, tbt_slo));
  all.push_back(distribution("tbt-share", "TBT", "ms", tbt, tbt_slo));
  all.push_back(parts_of_ttft(results, w, unit));
  all.push_back(queues(results, w));
  all.push_back(cached(results, w, info));
  all.push_back(rates(results, w));
  all.push_back(tokens(results, w, true));
  all.push_back(tokens(results, w, false));
  std::erase_if(all, [](const Chart& c) { return c.empty(); });
  for (Chart& c : all)
    if (c.x_from && c.x_label == "seconds after the start") c.x_to = duration;
  return all;
}

}  // namespace mc::trace
