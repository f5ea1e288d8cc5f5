#include "sim/paper.h"

#include <algorithm>
#include <cmath>

#include "sim/study.h"
#include "trace/stats.h"

namespace mc::sim {
namespace {

using namespace std::chrono_literals;
using trace::Trace;

struct Workload {
  const char* name;
  const Trace& trace;
};

StudyOptions cluster(uint64_t prefill, uint64_t decode) {
  StudyOptions o;
  o.sim.prefill = prefill;
  o.sim.decode = decode;
  return o;
}

StudyOptions baseline(const char* engine, uint64_t cache_tokens) {
  StudyOptions o = cluster(8, 8);
  o.sim.engine = engine;
  o.sim.cache_tokens = cache_tokens;
  o.sim.policy.policy = "rr";
  return o;
}

Result<Run> simulated(const PaperInput& in, const Trace& t, StudyOptions o) {
  o.play.seed = in.seed;
  o.sim.decode_tokens = std::max<uint64_t>(o.sim.decode_tokens, 200'000);
  MC_TRY(auto runs, run_study(t, in.spec, o));
  return std::move(runs[0]);
}

// Seconds of the GPU alone, without loading a cached prefix: Figures 15 and 17 count these.
double gpu_seconds(uint64_t tokens, uint64_t reused) {
  const auto n = static_cast<double>(tokens), p = static_cast<double>(reused);
  return 0.0113 + 1.13223e-4 * (n - p) + 7.3757e-10 * (n * n - p * p);
}

double mean_gpu_seconds(const Run& run) {
  double sum = 0;
  uint64_t n = 0;
  for (const auto& r : run.result.requests) {
    if (r.status != trace::Status::kOk) continue;
    sum += gpu_seconds(r.input, r.cached.value_or(0));
    ++n;
  }
  return n ? sum / static_cast<double>(n) : 0;
}

double hit_percent(const Run& run) {
  return run.result.full_blocks ? 100.0 * static_cast<double>(run.result.hit_full_blocks) /
                                      static_cast<double>(run.result.full_blocks)
                                : 0;
}

double within_percent(const Run& run, double ms) {  // of those that have a TBT
  return 100 * run.summary.tbt_ms.share_up_to(ms);
}

// ---- figures
// -------------------------------------------------------------------------------------

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

Result<PaperFigure> table3(const PaperInput& in) {
  PaperFigure f{"table3",
                "Workloads",
                "tokens, %",
                "counts; ratio: full blocks, infinite cache",
                {},
                0.08,
                "The published ratios were counted on tokens. Public ids stand for 512: they hide "
                "part of the system prompt and half a block of every continued prompt.",
                {}};
  const double published[][3] = {{12035, 343, 40}, {8596, 182, 59}, {15325, 149, 66}};
  const Workload all[] = {{"conversation", in.conversation},
                          {"tool&agent", in.tool_agent},
                          {"synthetic", in.documents}};
  for (size_t i = 0; i < 3; ++i) {
    const auto stats = trace::describe(all[i].trace);
    const auto curve = trace::lru_curve(all[i].trace.records, all[i].trace.block_tokens, {});
    const std::string name = all[i].name;
    f.rows.push_back({name + " mean input", published[i][0], stats.input.mean()});
    f.rows.push_back({name + " mean output", published[i][1], stats.output.mean()});
    f.rows.push_back(
        {name + " cache ratio %", published[i][2], 100 * curve.full_block_rate(curve.infinite)});
  }
  return f;
}

struct TbtPublished {
  const char* id;
  const char* title;
  double at[4][3];  // mooncake, vLLM, with prefix cache, chunked; within 100, 200, 300 ms
};

Result<PaperFigure> tbt(const PaperInput& in, const Trace& t, const TbtPublished& published) {
  PaperFigure f{published.id,
                published.title,
                "% of requests",
                "8 prefill + 8 decode nodes; baselines on 16 coupled nodes, round robin, prefix "
                "cache of 1 M tokens; TBT: longest tenth of gaps",
                {},
                0.15,
                {},
                {}};
  const StudyOptions setups[] = {cluster(8, 8), baseline("coupled", 0),
                                 baseline("coupled", 1'000'000), baseline("chunked", 0)};
  const char* names[] = {"mooncake", "vLLM", "vLLM prefix", "vLLM chunked"};
  const double limits[] = {100, 200, 300};
  for (size_t s = 0; s < 4; ++s) {
    MC_TRY(const Run run, simulated(in, t, setups[s]));
    for (size_t l = 0; l < 3; ++l)
      f.rows.push_back({strf("%s within %.0f ms", names[s], limits[l]), published.at[s][l],
                        within_percent(run, limits[l])});
  }
  f.note = "The baselines here batch no prompts and have no preemption.";
  return f;
}

Result<PaperFigure> figure1(const PaperInput& in) {
  return tbt(in, in.conversation,
             {"fig1",
              "Time between tokens, conversation",
              {{96.6, 100, 100}, {16.1, 38.8, 62.8}, {15.1, 34.3, 56.0}, {9.4, 28.8, 55.4}}});
}
Result<PaperFigure> figure13(const PaperInput& in) {
  return tbt(in, in.tool_agent,
             {"fig13",
              "Time between tokens, tool&agent",
              {{93.2, 99.8, 100}, {43.1, 45.3, 49.8}, {56.5, 70.0, 81.3}, {18.6, 21.3, 40.4}}});
}
Result<PaperFigure> figure14(const PaperInput& in) {
  return tbt(in, in.documents,
             {"fig14",
              "Time between tokens, synthetic",
              {{99.6, 100, 100}, {61.3, 71.0, 78.1}, {61.0, 70.8, 77.2}, {46.6, 57.3, 69.5}}});
}

Result<PaperFigure> figure5(const PaperInput& in) {
  PaperFigure f{"fig5",
                "Mean TTFT by policy, conversation",
                "s",
                "6 prefill + 10 decode nodes (not stated; fits)",
                {},
                0.15,
                "The queue estimate here is exact, that of a real cluster is not.",
                {}};
  const char* policies[] = {"kvcache", "local", "count", "random"};
  const char* names[] = {"global cache", "local cache", "fewest requests", "random"};
  const double published[] = {3.07, 3.58, 5.27, 19.65};
  for (size_t i = 0; i < 4; ++i) {
    StudyOptions o = cluster(6, 10);
    o.sim.policy.policy = policies[i];
    MC_TRY(const Run run, simulated(in, in.conversation, o));
    f.rows.push_back({names[i], published[i], run.summary.ttft_ms.mean() / 1e3});
  }
  return f;
}

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
    f.rows.push_back({std::string(kind) + ": correlation of the two loads", {}, c});
    f.rows.push_back({std::string(kind) + ": deviation of the prefill load", {}, swing});
  }
  return f;
}

// Days of documents and nights of chats, a quarter of an hour each.
Trace tide(const PaperInput& in) {
  Trace t;
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
  const Trace t = tide(in);
  for (const bool control : {false, true}) {
    StudyOptions o = cluster(8, 8);
    o.sim.pd_control = control;
    o.sim.pd.cooldown = 20s;
    o.sim.admission.ttft_slo = 30s;
    o.sim.admission.tbt_slo = 100ms;
    MC_TRY(const Run run, simulated(in, t, o));
    const std::string name = control ? "controlled" : "fixed 8 + 8";
    f.rows.push_back({name + ": effective %", {}, 100 * run.summary.effective_ratio.value_or(0)});
    f.rows.push_back({name + ": mean TTFT s", {}, run.summary.ttft_ms.mean() / 1e3});
    if (control)
      f.rows.push_back({"moves of a node", {}, static_cast<double>(run.result.moves.size())});
  }
  return f;
}

Result<PaperFigure> figure15(const PaperInput& in) {
  PaperFigure f{"fig15",
                "GPU time of prefill",
                "s a request",
                "8 + 8 nodes; baselines as in fig1",
                {},
                0.15,
                {},
                {}};
  const double published[][4] = {
      {1.062, 1.661, 1.523, 2.021}, {0.527, 1.117, 0.740, 1.415}, {0.733, 2.022, 1.896, 2.436}};
  const Workload all[] = {{"conversation", in.conversation},
                          {"tool&agent", in.tool_agent},
                          {"synthetic", in.documents}};
  for (size_t i = 0; i < 3; ++i) {
    const std::string name = all[i].name;
    double plain = 0;
    for (const auto& r : all[i].trace.records)
      plain += gpu_seconds(r.input_length, 0) / static_cast<double>(all[i].trace.records.size());
    MC_TRY(const Run global, simulated(in, all[i].trace, cluster(8, 8)));
    MC_TRY(const Run prefix, simulated(in, all[i].trace, baseline("coupled", 1'000'000)));
    f.rows.push_back({name + " mooncake", published[i][0], mean_gpu_seconds(global)});
    f.rows.push_back({name + " vLLM", published[i][1], plain});
    f.rows.push_back({name + " vLLM prefix", published[i][2], mean_gpu_seconds(prefix)});
    f.rows.push_back({name + " vLLM chunked", published[i][3], 1.22 * plain});
  }
  return f;
}

Result<PaperFigure> figure16(const PaperInput& in) {
  PaperFigure f{
      "fig16",
      "Hit rate by cache size",
      "% of full blocks",
      "one LRU cache",
      {},
      0.15,
      "Published from tokens, here from blocks of 512: about 2 points lower where prompts "
      "share a short system prompt.",
      {}};
  const std::vector<double> sizes = {1e6, 2e6, 5e6, 10e6, 50e6, 1e9};
  const double published[][6] = {{8.66, 12.02, 24.71, 32.63, 39.83, 40.06},
                                 {38.65, 41.36, 50.54, 56.08, 59.48, 59.50},
                                 {14.61, 23.45, 43.52, 58.86, 65.82, 65.82}};
  const Workload all[] = {{"conversation", in.conversation},
                          {"tool&agent", in.tool_agent},
                          {"synthetic", in.documents}};
  for (size_t i = 0; i < 3; ++i) {
    const Trace& t = all[i].trace;
    std::vector<uint64_t> blocks;
    for (const double s : sizes) blocks.push_back(static_cast<uint64_t>(s) / t.block_tokens);
    const auto curve = trace::lru_curve(t.records, t.block_tokens, blocks);
    for (size_t k = 0; k < sizes.size(); ++k)
      f.rows.push_back({strf("%s %.0fM tokens", all[i].name, sizes[k] / 1e6), published[i][k],
                        100 * curve.full_block_rate(curve.points[k])});
  }
  return f;
}

Result<PaperFigure> figure17(const PaperInput& in) {
  PaperFigure f{"fig17",
                "Local caches against a global one",
                "% of full blocks; GPU s",
                "10 prefill nodes of 3 M tokens; local: the same routing without fetching",
                {},
                0.15,
                "What the published local cache routed by is not said: plain load balancing is "
                "below it, cache-aware routing above.",
                {}};
  const double published[][4] = {
      {16.9, 37.5, 1.379, 1.05}, {42.0, 58.1, 0.703, 0.521}, {26.4, 62.2, 1.497, 0.783}};
  const Workload all[] = {{"conversation", in.conversation},
                          {"tool&agent", in.tool_agent},
                          {"synthetic", in.documents}};
  for (size_t i = 0; i < 3; ++i) {
    const std::string name = all[i].name;
    StudyOptions o = cluster(10, 10);
    MC_TRY(const Run global, simulated(in, all[i].trace, o));
    o.sim.policy.policy = "local";
    MC_TRY(const Run local, simulated(in, all[i].trace, o));
    o.sim.policy.policy = "load";
    MC_TRY(const Run load, simulated(in, all[i].trace, o));
    f.rows.push_back({name + " global hits", published[i][1], hit_percent(global)});
    f.rows.push_back({name + " global GPU s", published[i][3], mean_gpu_seconds(global)});
    f.rows.push_back({name + " local hits", published[i][0], hit_percent(local)});
    f.rows.push_back({name + " local GPU s", published[i][2], mean_gpu_seconds(local)});
    f.rows.push_back({name + " local hits, balanced by load only", {}, hit_percent(load)});
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

struct Entry {
  const char* id;
  Result<PaperFigure> (*make)(const PaperInput&);
};
constexpr Entry kPaper[] = {{"eq2", equation2},  {"table3", table3},  {"fig1", figure1},
                            {"fig5", figure5},   {"fig6-7", figure6}, {"fig8", figure8},
                            {"fig13", figure13}, {"fig14", figure14}, {"fig15", figure15},
                            {"fig16", figure16}, {"fig17", figure17}, {"fig21", figure21},
                            {"fig22", figure22}, {"fig23", figure23}, {"table4", table4}};

}  // namespace

std::vector<std::string> paper_figures() {
  std::vector<std::string> out;
  for (const Entry& e : kPaper) out.push_back(e.id);
  return out;
}

std::string verdict_of(const PaperFigure& f) {
  double worst = 0;
  size_t compared = 0, pairs = 0, alike = 0;
  std::string where;
  for (const PaperRow& r : f.rows) {
    if (!r.published || !r.ours) continue;
    ++compared;
    const double off = std::abs(*r.ours / *r.published - 1);
    if (off > worst) where = r.what;
    worst = std::max(worst, off);
    for (const PaperRow& other : f.rows) {
      if (!other.published || !other.ours || *other.published <= *r.published * 1.05) continue;
      ++pairs;
      alike += *other.ours > *r.ours;
    }
  }
  if (compared == 0) return "no published numbers to compare";
  if (worst <= f.tolerance)
    return strf("agrees: every value within %.0f %%", std::ceil(100 * worst));
  const std::string off = strf("up to %.0f %% off (%s)", 100 * worst, where.c_str());
  if (alike == pairs) return "the order agrees; values are " + off;
  const double share = static_cast<double>(alike) / static_cast<double>(pairs);
  return strf("%s: %.0f %% of pairs rank alike; values are ", share < 0.5 ? "disagrees" : "partly",
              100 * share) +
         off;
}

Result<> check_figures(const std::vector<std::string>& ids) {
  const auto known = paper_figures();
  for (const std::string& id : ids) {
    if (std::find(known.begin(), known.end(), id) != known.end()) continue;
    std::string names;
    for (const std::string& name : known) names += " " + name;
    return fail(Code::kInvalid, "no figure '%s'; there are:%s", id.c_str(), names.c_str());
  }
  return {};
}

Result<std::vector<PaperFigure>> reproduce(const PaperInput& input,
                                           const std::vector<std::string>& ids) {
  MC_TRY_(check_figures(ids));
  std::vector<PaperFigure> out;
  for (const Entry& e : kPaper) {
    if (!ids.empty() && std::find(ids.begin(), ids.end(), e.id) == ids.end()) continue;
    MC_TRY(PaperFigure figure, e.make(input));
    figure.verdict = verdict_of(figure);
    out.push_back(std::move(figure));
  }
  return out;
}

}  // namespace mc::sim
