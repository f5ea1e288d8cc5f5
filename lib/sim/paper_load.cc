// Loads, refusals, splits and bandwidth: equation 2, Figures 6 to 8, 21 to 23, Tables 4 and 5.
#include <algorithm>
#include <cmath>

#include "sim/paper_figures.h"
#include "trace/reshape.h"
#include "trace/stats.h"

namespace mc::sim {

using namespace std::chrono_literals;

namespace {

double correlation(const std::vector<Sample>& samples, double* swing) {
  double mp = 0, md = 0, pp = 0, dd = 0, pd = 0;
  const auto n = static_cast<double>(samples.size());
  for (const Sample& s : samples) {
    mp += s.prefill_load / n;
    md += s.decode_load / n;
  }
  for (const Sample& s : samples) {
    const double p = s.prefill_load - mp, d = s.decode_load - md;
    pp += p * p;
    dd += d * d;
    pd += p * d;
  }
  *swing = n > 0 ? std::sqrt(pp / n) : 0;
  return pp > 0 && dd > 0 ? pd / std::sqrt(pp * dd) : 0;
}

template <class Value>
PaperCurve over_time(const Run& run, std::string chart, std::string name, Value value) {
  PaperCurve c{std::move(chart), std::move(name), {}};
  for (const Sample& s : run.result.timeline) c.points.emplace_back(s.at_s, value(s));
  return c;
}

// Days of documents and nights of chats, a quarter of an hour each.
trace::Trace tide(const PaperInput& in) {
  trace::Trace t;
  t.name = "tide";
  uint64_t next = 0;
  for (const trace::Record& r : in.documents.records)
    for (const uint64_t id : r.hash_ids) next = std::max(next, id + 1);
  const uint64_t half = 900'000, gap = 300;  // ms
  for (uint64_t day = 0; day < 3; ++day) {
    for (trace::Record r : in.documents.records) {
      if (r.timestamp_ms >= half) break;
      r.timestamp_ms += 2 * day * half;
      t.records.push_back(std::move(r));
    }
    for (uint64_t i = 0; i < half / gap; ++i) {
      trace::Record r{(2 * day + 1) * half + i * gap, 512, 500, {next++}};
      t.records.push_back(std::move(r));
    }
  }
  return t;
}

}  // namespace

Result<PaperFigure> equation2(const PaperInput&) {
  // Least bandwidth at which fetching 8192 cached tokens beats computing them: 2 d s / gqa bytes a
  // token and layer, over a p d + b d^2 operations; d = 8192, gqa = 8, 2 bytes, a = 4, b = 22.
  const double d = 8192, bytes = 2 * d * 2 / 8, operations = 4 * 8192 * d + 22 * d * d;
  PaperFigure f{"eq2",  "Least bandwidth for reusing 8192 tokens",
                "GB/s", "LLaMA3-70B; 8 x 312 and 8 x 989 TFLOPS",
                {},     0.05,
                {},     {}};
  f.rows = {{"8 x A800", 6, bytes / operations * 8 * 312e12 / 1e9},
            {"8 x H800", 19, bytes / operations * 8 * 989e12 / 1e9}};
  return f;
}

Result<PaperFigure> figure6(const PaperInput& in) {
  PaperFigure f{"fig6-7",
                "Loads under early rejection, and with prediction",
                "as named",
                "conversation at 2 x speed, 8 + 8 nodes, TTFT 30 s, TBT 300 ms; sampled every 5 s",
                {},
                0,
                "The paper shows curves without a scale.",
                {}};
  for (const char* kind : {"early", "predict"}) {
    StudyOptions o = cluster(8, 8);
    o.play.speed = 2;
    o.sim.admission.admission = kind;
    o.sim.admission.ttft_slo = 30s;
    o.sim.admission.tbt_slo = 300ms;
    o.sim.sample = 5s;
    MC_TRY(const Run run, simulated(in, in.conversation, o));
    double swing = 0;
    const double c = correlation(run.result.timeline, &swing);
    for (const bool prefill : {true, false})
      f.curves.push_back(over_time(
          run, std::string(kind) + ": loads of 1 are full", prefill ? "prefill" : "decode",
          [&](const Sample& s) { return prefill ? s.prefill_load : s.decode_load; }));
    f.rows.push_back({std::string(kind) + ": correlation of the two loads", {}, c});
    f.rows.push_back({std::string(kind) + ": deviation of the prefill load", {}, swing});
  }
  return f;
}

Result<PaperFigure> figure8(const PaperInput& in) {
  PaperFigure f{"fig8",
                "Nodes that follow the tide",
                "as named",
                "three days of documents and nights of short chats, 15 minutes each; 16 nodes, a "
                "move every 20 s at most, "
                "TTFT 30 s, TBT 100 ms",
                {},
                0,
                "The paper shows a day of a production cluster; only the behaviour compares.",
                {}};
  const trace::Trace t = tide(in);
  for (const bool control : {false, true}) {
    StudyOptions o = cluster(8, 8);
    o.sim.pd_control = control;
    o.sim.pd.cooldown = 20s;
    o.sim.sample = 10s;
    o.sim.admission.ttft_slo = 30s;
    o.sim.admission.tbt_slo = 100ms;
    MC_TRY(const Run run, simulated(in, t, o));
    const std::string name = control ? "controlled" : "fixed 8 + 8";
    f.rows.push_back({name + ": effective %", {}, 100 * run.summary.effective_ratio.value_or(0)});
    f.rows.push_back({name + ": mean TTFT s", {}, run.summary.ttft_ms.mean() / 1e3});
    if (control)
      for (const bool prefill : {true, false})
        f.curves.push_back(over_time(
            run, "nodes, controlled", prefill ? "prefill" : "decode", [&](const Sample& s) {
              return static_cast<double>(prefill ? s.prefill_nodes : s.decode_nodes);
            }));
    if (control)
      f.rows.push_back({"moves of a node", {}, static_cast<double>(run.result.moves.size())});
  }
  return f;
}

Result<PaperFigure> figure21(const PaperInput& in) {
  PaperFigure f{"fig21",
                "Mean TTFT by network bandwidth, synthetic",
                "s",
                "8 + 8 nodes, one NIC each of the given Gbit/s, max-min fair",
                {},
                0.15,
                "With a slow NIC the node that holds a document serves all who fetch it.",
                {}};
  const double gbps[] = {24, 40, 80, 100, 160, 320, 400};
  const double published[] = {5.094, 2.401, 1.73, 1.596, 1.406, 1.246, 1.252};
  for (size_t i = 0; i < std::size(gbps); ++i) {
    StudyOptions o = cluster(8, 8);
    o.sim.nic_gbps = gbps[i];
    MC_TRY(const Run run, simulated(in, in.documents, o));
    f.rows.push_back(
        {strf("%.0f Gbit/s", gbps[i]), published[i], run.summary.ttft_ms.mean() / 1e3});
  }
  return f;
}

Result<PaperFigure> figure22(const PaperInput& in) {
  PaperFigure f{"fig22",
                "Where the time goes, one request alone",
                "s",
                "0 and 95 % of the prompt cached; decode: 128 tokens",
                {},
                0.10,
                "By construction: the model's coefficients were fitted to these bars.",
                {}};
  struct Bar {
    const char* name;
    uint64_t tokens;
    double prefill[2], decode;
  };
  const Bar bars[] = {{"8k", 8192, {1.0, 0.135}, 3.391},
                      {"16k", 16384, {2.053, 0.227}, 3.435},
                      {"32k", 32768, {4.481, 0.406}, 3.522},
                      {"64k", 65536, {10.585, 0.882}, 3.657},
                      {"128k", 131072, {27.512, 2.328}, 3.942}};
  for (const Bar& b : bars) {
    const auto cached = static_cast<uint64_t>(0.95 * static_cast<double>(b.tokens));
    const std::string name = b.name;
    f.rows.push_back(
        {name + " prefill, 0 %", b.prefill[0], spec::prefill_seconds(in.spec, b.tokens, 0)});
    f.rows.push_back(
        {name + " prefill, 95 %", b.prefill[1], spec::prefill_seconds(in.spec, b.tokens, cached)});
    double decode = 0;
    for (uint64_t i = 0; i < 128; ++i) decode += spec::step_seconds(in.spec, 1, b.tokens + i);
    f.rows.push_back({name + " decode", b.decode, decode});
  }
  return f;
}

Result<PaperFigure> figure23(const PaperInput& in) {
  PaperFigure f{"fig23",    "Prefill to decode ratio, synthetic",
                "%, s, ms", "16 nodes, TTFT 10 s, TBT 100 ms; gap: mean",
                {},         0.15,
                {},         {}};
  const double published[][3] = {
      {77.67, 5.738, 31.51}, {97.2, 1.712, 31.76},  {99.09, 1.302, 32.88}, {98.99, 1.191, 35.04},
      {99.17, 1.123, 38.25}, {98.41, 1.111, 44.19}, {86.12, 1.137, 58.32}};
  for (uint64_t p = 5; p <= 11; ++p) {
    StudyOptions o = cluster(p, 16 - p);
    o.sim.admission.ttft_slo = 10s;
    o.sim.admission.tbt_slo = 100ms;
    MC_TRY(const Run run, simulated(in, in.documents, o));
    const std::string name = strf("%lluP%lluD", static_cast<unsigned long long>(p),
                                  static_cast<unsigned long long>(16 - p));
    const double* want = published[p - 5];
    f.rows.push_back(
        {name + " effective %", want[0], 100 * run.summary.effective_ratio.value_or(0)});
    f.rows.push_back({name + " TTFT s", want[1], run.summary.ttft_ms.mean() / 1e3});
    f.rows.push_back({name + " gap ms", want[2], run.summary.tpot_ms.mean()});
  }
  return f;
}

Result<PaperFigure> table4(const PaperInput& in) {
  PaperFigure f{"table4",
                "Refused requests under overload, tool&agent",
                "requests",
                "2 x speed, 8 + 8 nodes, TTFT 30 s, TBT 300 ms (not stated)",
                {},
                0.15,
                "Here early refusals save prefill time as published, but not requests: arrivals "
                "come in bursts "
                "of many short calls, and the more is known of a burst the more of it is refused.",
                {}};
  const char* kinds[] = {"baseline", "early", "predict"};
  const double published[] = {4183, 3771, 3589};
  for (size_t i = 0; i < 3; ++i) {
    StudyOptions o = cluster(8, 8);
    o.play.speed = 2;
    o.sim.admission.admission = kinds[i];
    o.sim.admission.ttft_slo = 30s;
    o.sim.admission.tbt_slo = 300ms;
    MC_TRY(const Run run, simulated(in, in.tool_agent, o));
    const std::string name = kinds[i];
    f.rows.push_back({name, published[i], static_cast<double>(run.summary.rejected)});
    f.rows.push_back({name + ", wasted prefill s", {}, run.result.wasted_prefill_s});
  }
  return f;
}

Result<PaperFigure> table5(const PaperInput& in) {
  PaperFigure f{
      "table5",
      "Disaggregated against coupled serving, other systems (shape only)",
      "TTFT s; requests/s",
      "200 requests of 2000 tokens and 100 to answer, evenly apart; our model on 6 nodes: 4 of "
      "prefill and 2 of decode, or 6 coupled ones, round robin",
      {},
      0.15,
      "Published of SGLang on H20 GPUs, with another model: rates that saturate it are a light "
      "load here, so that only the direction can compare.",
      {}};
  struct Published {
    double qps, ttft_s[2], completed[2];  // coupled, 4P2D
  };
  const Published published[] = {{1, {1.234, 1.302}, {0.29, 0.29}},
                                 {4, {4.570, 1.564}, {0.55, 0.98}},
                                 {8, {9.629, 1.969}, {0.65, 1.77}}};
  for (const Published& p : published) {
    trace::FixedShape shape;
    shape.input = 2000;
    shape.output = 100;
    shape.qps = p.qps;
    trace::Trace t;
    t.name = "fixed";
    MC_TRY(t.records, trace::fixed(shape));
    for (const bool apart : {false, true}) {
      StudyOptions o = apart ? cluster(4, 2) : baseline("coupled", 0);
      o.sim.prefill = 4;
      o.sim.decode = 2;
      MC_TRY(const Run run, simulated(in, t, o));
      const std::string name = strf("%.0f a second, %s", p.qps, apart ? "4P2D" : "coupled");
      f.rows.push_back({name + ": TTFT", p.ttft_s[apart], run.summary.ttft_ms.mean() / 1e3});
      f.rows.push_back({name + ": completed/s", p.completed[apart], run.summary.completed_rps});
    }
  }
  return f;
}

}  // namespace mc::sim
