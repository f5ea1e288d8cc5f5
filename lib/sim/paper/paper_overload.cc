// Refusals, and load that follows a day: Figures 6 to 8, Table 4.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "sim/paper/paper_figures.h"
#include "trace/synth/diurnal_rate.h"

namespace mc::sim {

using namespace std::chrono_literals;

namespace {

template <class Value>
PaperCurve over_time(const std::vector<Sample>& samples, std::string chart, std::string name,
                     Value value) {
  PaperCurve c{std::move(chart), std::move(name), {}};
  for (const Sample& s : samples) c.points.emplace_back(s.at_s, value(s));
  return c;
}

// Means over `window` samples. Traces have arrivals in slots of seconds, which are no fluctuation.
std::vector<Sample> smoothed(const std::vector<Sample>& samples, size_t window) {
  std::vector<Sample> out;
  for (size_t i = 0; i + window <= samples.size(); ++i) {
    Sample s = samples[i + window / 2];
    s.prefill_load = s.decode_load = 0;
    for (size_t k = i; k < i + window; ++k) {
      s.prefill_load += samples[k].prefill_load / static_cast<double>(window);
      s.decode_load += samples[k].decode_load / static_cast<double>(window);
    }
    out.push_back(s);
  }
  return out;
}

struct Swing {
  double together = 0;             // correlation of both loads
  double prefill = 0, decode = 0;  // standard deviations
};

// Leaves out the first and the last tenth, when the cluster fills and empties.
Swing swing(const std::vector<Sample>& all) {
  const auto edge = static_cast<std::ptrdiff_t>(all.size() / 10);
  const std::vector<Sample> samples(all.begin() + edge, all.end() - edge);
  double mp = 0, md = 0, pp = 0, dd = 0, pd = 0;
  const auto n = static_cast<double>(samples.size());
  for (const Sample& s : samples) {
    mp += s.prefill_load / n;
    md += s.decode_load / n;
  }
  for (const Sample& s : samples) {
    const double p = s.prefill_load - mp, d = s.decode_load - md;
    pp += p * p / n;
    dd += d * d / n;
    pd += p * d / n;
  }
  return {pp > 0 && dd > 0 ? pd / std::sqrt(pp * dd) : 0, std::sqrt(pp), std::sqrt(dd)};
}

StudyOptions overloaded(const char* admission, Duration tbt_slo) {
  StudyOptions o = promising(cluster(8, 8), 30s, tbt_slo);
  o.play.speed = 2;
  o.sim.admission.admission = admission;
  return o;
}

}  // namespace

// The deviations of one run are as much chance as policy: a rate that is 2 % off has others. So
// five rates are simulated, and their means compared.
Result<PaperFigure> figure6(const PaperInput& in) {
  constexpr size_t kWindow = 6;
  constexpr double kShown = 2, kSpeeds[] = {1.9, 1.95, kShown, 2.05, 2.1};
  PaperFigure f{"fig6-7",
                "Loads under early rejection, and with prediction",
                "as named",
                "conversation at 1.9 to 2.1 x speed (five rates, means of them), 8 + 8 nodes, TTFT "
                "30 s, TBT 100 ms; sampled every 5 s, means over 30 s",
                {},
                0,
                "The paper shows curves of another cluster, without a scale.",
                {}};
  Swing mean[2];
  const char* kinds[] = {"early", "predict"};
  for (size_t i = 0; i < 2; ++i) {
    const std::string kind = kinds[i];
    for (size_t k = 0; k < std::size(kSpeeds); ++k) {
      StudyOptions o = overloaded(kinds[i], 100ms);
      o.play.speed = kSpeeds[k];
      o.sim.sample = 5s;
      MC_TRY(const Run run, simulated(in, in.conversation, o));
      const auto samples = smoothed(run.result.timeline, kWindow);
      const Swing one = swing(samples);
      mean[i].together += one.together / std::size(kSpeeds);
      mean[i].prefill += one.prefill / std::size(kSpeeds);
      mean[i].decode += one.decode / std::size(kSpeeds);
      if (kSpeeds[k] != kShown) continue;
      f.curves.push_back(over_time(samples, kind + ": loads of 1 are full", "prefill",
                                   [](const Sample& s) { return s.prefill_load; }));
      f.curves.push_back(over_time(samples, kind + ": loads of 1 are full", "decode",
                                   [](const Sample& s) { return s.decode_load; }));
    }
    f.rows.push_back({kind + ": correlation of the two loads", {}, mean[i].together});
    f.rows.push_back({kind + ": deviation of the prefill load", {}, mean[i].prefill});
    f.rows.push_back({kind + ": deviation of the decode load", {}, mean[i].decode});
  }
  f.claims = {
      {"under early rejection the loads swing against each other (correlation below -0.3)",
       mean[0].together < -0.3},
      {"with prediction they do so less by a third", mean[1].together > 2.0 / 3 * mean[0].together},
      {"prediction damps the swing of the prefill load by a tenth",
       mean[1].prefill < 0.9 * mean[0].prefill},
      {"and that of the decode load", mean[1].decode < 0.9 * mean[0].decode}};
  return f;
}

namespace {

// A day: documents in working hours, and short chats with long answers, mostly in the evening.
Result<trace::Trace> day(const PaperInput& in) {
  constexpr uint64_t kTimes = 20, kChats = 48'000;
  trace::Trace t;
  t.name = "day";
  const uint64_t span = in.documents.records.back().timestamp_ms + 1;
  uint64_t ids = 0;
  for (const trace::TraceRequest& r : in.documents.records)
    for (const uint64_t id : r.hash_ids) ids = std::max(ids, id + 1);
  for (uint64_t i = 0; i < kTimes; ++i)
    for (trace::TraceRequest r : in.documents.records) {
      r.timestamp_ms += i * span;
      for (uint64_t& id : r.hash_ids) id += i * ids;
      t.records.push_back(std::move(r));
    }
  std::vector<trace::TraceRequest> chats;
  for (uint64_t i = 0; i < kChats; ++i) chats.push_back({i, 512, 500, {i}});
  MC_TRY(const auto working, trace::parse_diurnal_rate("day"));
  MC_TRY(const auto evening, trace::parse_diurnal_rate("evening"));
  MC_TRY(t.records, trace::over_a_day(std::move(t.records), working));
  MC_TRY(chats, trace::over_a_day(std::move(chats), evening));
  t.records = trace::together(std::move(t.records), chats);
  return t;
}

double machine_hours(const std::vector<Sample>& samples) {
  double sum = 0;
  for (const Sample& s : samples) sum += static_cast<double>(s.prefill_nodes + s.decode_nodes);
  return samples.empty() ? 0 : 24 * sum / static_cast<double>(samples.size());
}

double mean_nodes(const std::vector<Sample>& samples, bool prefill, double from_h, double to_h) {
  double sum = 0, n = 0;
  for (const Sample& s : samples) {
    if (s.at_s < from_h * 3600 || s.at_s >= to_h * 3600) continue;
    sum += static_cast<double>(prefill ? s.prefill_nodes : s.decode_nodes);
    ++n;
  }
  return n > 0 ? sum / n : 0;
}

}  // namespace

Result<PaperFigure> figure8(const PaperInput& in) {
  PaperFigure f{"fig8",
                "Nodes that follow the load of a day",
                "as named",
                "24 hours: 80,000 requests about documents, mostly in working hours, and 48,000 "
                "short chats, mostly in the evening; 8 machines, and from 4 to 8 by the hour; TTFT "
                "30 s, TBT 100 ms; controller: every 60 s",
                {},
                0,
                "The paper shows a day of a production cluster; only the behaviour compares. The "
                "paper does not say that following the load keeps more promises; on a day that "
                "suits a fixed half and half it may not.",
                {}};
  MC_TRY(const trace::Trace t, day(in));
  const char* names[] = {"fixed 4 + 4", "controlled", "controlled, machines by the hour"};
  for (size_t i = 0; i < 3; ++i) {
    StudyOptions o = promising(cluster(4, 4), 30s, 100ms);
    o.sim.pd_control = i > 0;
    o.sim.pd.interval = 60s;
    if (i == 2) o.sim.machines = {"6@0h", "4@2h", "6@7h", "8@9h", "7@23h"};
    o.sim.sample = 300s;
    MC_TRY(const Run run, simulated(in, t, o));
    const std::string name = names[i];
    const auto& samples = run.result.timeline;
    f.rows.push_back({name + ": effective %", {}, 100 * run.summary.effective_ratio.value_or(0)});
    f.rows.push_back({name + ": mean TTFT s", {}, run.summary.ttft_ms.mean() / 1e3});
    f.rows.push_back({name + ": machine hours", {}, machine_hours(samples)});
    if (i < 2) continue;
    f.rows.push_back({name + ": moves", {}, static_cast<double>(run.result.moves.size())});
    for (const bool prefill : {true, false}) {
      const char* side = prefill ? "prefill" : "decode";
      f.curves.push_back(over_time(samples, "nodes over a day", side, [&](const Sample& s) {
        return static_cast<double>(prefill ? s.prefill_nodes : s.decode_nodes);
      }));
    }
    const auto loads = smoothed(samples, 6);
    f.curves.push_back(over_time(loads, "loads over a day, half-hour means", "prefill",
                                 [](const Sample& s) { return s.prefill_load; }));
    f.curves.push_back(over_time(loads, "loads over a day, half-hour means", "decode",
                                 [](const Sample& s) { return s.decode_load; }));
    f.claims.push_back({"more prefill nodes in working hours (9 to 12) than in the evening",
                        mean_nodes(samples, true, 9, 12) > mean_nodes(samples, true, 20, 23)});
    f.claims.push_back(
        {"fewer machine hours than with all machines all day", machine_hours(samples) < 191});
    f.claims.push_back({"more decode nodes in the evening (20 to 23) than in working hours",
                        mean_nodes(samples, false, 20, 23) > mean_nodes(samples, false, 9, 12)});
  }
  return f;
}

Result<PaperFigure> table4(const PaperInput& in) {
  PaperFigure f{"table4",
                "Refused requests under overload",
                "requests, s",
                "2 x speed, 8 + 8 nodes, TTFT 30 s; TBT (not stated) 300 ms, conversation 200 too",
                {},
                0.15,
                "The decode nodes limit how many requests are served: in this model each further "
                "request adds 3.8 ms to every step, so the decode pool is the bottleneck.",
                {}};
  const char* kinds[] = {"baseline", "early", "predict"};
  const double published[] = {4183, 3771, 3589};
  struct Case {
    const char* name;
    const trace::Trace& trace;
    Duration tbt;
    bool published;
  };
  const Case cases[] = {{"tool&agent", in.tool_agent, 300ms, true},
                        {"conversation", in.conversation, 300ms, false},
                        {"conversation, TBT 200 ms", in.conversation, 200ms, false}};
  for (const Case& c : cases) {
    std::vector<double> refused, wasted;
    for (size_t i = 0; i < 3; ++i) {
      MC_TRY(const Run run, simulated(in, c.trace, overloaded(kinds[i], c.tbt)));
      refused.push_back(static_cast<double>(run.summary.rejected));
      wasted.push_back(run.result.wasted_prefill_s);
      const std::string name = strf("%s: %s", c.name, kinds[i]);
      f.rows.push_back(
          {name, c.published ? std::optional(published[i]) : std::nullopt, refused.back()});
      f.rows.push_back({name + ", wasted prefill s", {}, wasted.back()});
    }
    f.claims.push_back(
        {strf("%s: baseline refuses more than early", c.name), refused[0] > refused[1]});
    f.claims.push_back({strf("%s: early more than predict", c.name), refused[1] > refused[2]});
    f.claims.push_back({strf("%s: refusing early wastes less prefill", c.name),
                        std::max(wasted[1], wasted[2]) < wasted[0]});
  }
  return f;
}

}  // namespace mc::sim
