// Splits and bandwidth: equation 2, Figures 21 to 23.
#include <algorithm>
#include <cmath>

#include "sim/paper/paper_figures.h"
#include "trace/analyze/stats.h"

namespace mc::sim {

using namespace std::chrono_literals;

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

namespace {

// A request's TTFT without cached blocks and without queueing.
double recomputed_s(const PaperInput& in) {
  const SimOptions o;
  double sum = 0;
  for (const trace::TraceRequest& r : in.documents.records) {
    const auto bytes = static_cast<double>(r.input_length * in.spec.kv_bytes_per_token());
    sum += to_seconds(o.overhead) + cost::prefill_seconds(in.spec, r.input_length, 0) +
           bytes / in.spec.cost.transfer_bytes_per_s + bytes / o.load_bytes_per_s +
           cost::step_seconds(in.spec, 1, r.input_length);
  }
  return sum / static_cast<double>(in.documents.records.size());
}

// How many times longer the run's transfers to decode nodes take than alone on their NICs.
double congestion(const PaperInput& in, const Run& run, double gbps) {
  double real = 0, ideal = 0;
  for (const auto& r : run.result.requests) {
    if (!r.transfer_ms) continue;
    const auto bytes = static_cast<double>(r.input * in.spec.kv_bytes_per_token());
    real += *r.transfer_ms / 1e3 - bytes / SimOptions{}.load_bytes_per_s;
    ideal += bytes / (gbps * 1e9 / 8);
  }
  return ideal > 0 ? real / ideal : 0;
}

}  // namespace

Result<PaperFigure> figure21(const PaperInput& in) {
  PaperFigure f{"fig21",
                "Mean TTFT by network bandwidth, synthetic",
                "s, times",
                "8 + 8 nodes, one NIC each of the given Gbit/s, max-min fair",
                {},
                0.15,
                "Transfers do not overlap with computing here: at 24 Gbit/s, those to decode nodes "
                "alone use most of the NICs' bandwidth.",
                {}};
  const double gbps[] = {24, 40, 80, 100, 160, 320, 400};
  const double published[] = {5.094, 2.401, 1.73, 1.596, 1.406, 1.246, 1.252};
  std::vector<double> ttft_s, congested;
  for (size_t i = 0; i < std::size(gbps); ++i) {
    StudyOptions o = cluster(8, 8);
    o.sim.nic_gbps = gbps[i];
    MC_TRY(const Run run, simulated(in, in.documents, o));
    ttft_s.push_back(run.summary.ttft_ms.mean() / 1e3);
    congested.push_back(congestion(in, run, gbps[i]));
    f.rows.push_back({strf("%.0f Gbit/s", gbps[i]), published[i], ttft_s.back()});
  }
  f.rows.push_back({"recomputed, alone", 2.62, recomputed_s(in)});
  for (size_t i = 0; i < std::size(gbps); ++i)
    f.rows.push_back(
        {strf("%.0f Gbit/s: transfers take, of the ideal", gbps[i]), {}, congested[i]});
  f.claims = {{"the faster the network, the lower the TTFT",
               std::is_sorted(ttft_s.rbegin(), ttft_s.rend())},
              {"from 100 Gbit/s on it is below 2 s, and below recomputing",
               *std::max_element(ttft_s.begin() + 3, ttft_s.end()) < std::min(2.0, 2.62)},
              {"below 100 Gbit/s it rises sharply: twice as long and more at 24",
               ttft_s[0] > 2 * ttft_s[3]},
              {"and transfers take much longer there than they should: twice and more",
               congested[0] > 2 && congested.back() < 1.5}};
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
        {name + " prefill, 0 %", b.prefill[0], cost::prefill_seconds(in.spec, b.tokens, 0)});
    f.rows.push_back(
        {name + " prefill, 95 %", b.prefill[1], cost::prefill_seconds(in.spec, b.tokens, cached)});
    double decode = 0;
    for (uint64_t i = 0; i < 128; ++i) decode += cost::step_seconds(in.spec, 1, b.tokens + i);
    f.rows.push_back({name + " decode", b.decode, decode});
  }
  return f;
}

Result<PaperFigure> figure23(const PaperInput& in) {
  PaperFigure f{"fig23",
                "Prefill to decode ratio, synthetic",
                "%, s, ms",
                "16 nodes, TTFT 10 s, TBT 100 ms; gap: mean",
                {},
                0.15,
                "The made trace has most of its new documents at first, when five and six prefill "
                "nodes are too few; the recorded one is not available.",
                {}};
  const double published[][3] = {
      {77.67, 5.738, 31.51}, {97.2, 1.712, 31.76},  {99.09, 1.302, 32.88}, {98.99, 1.191, 35.04},
      {99.17, 1.123, 38.25}, {98.41, 1.111, 44.19}, {86.12, 1.137, 58.32}};
  for (uint64_t p = 5; p <= 11; ++p) {
    MC_TRY(const Run run, simulated(in, in.documents, promising(cluster(p, 16 - p), 10s, 100ms)));
    const std::string name = strf("%lluP%lluD", static_cast<unsigned long long>(p),
                                  static_cast<unsigned long long>(16 - p));
    const double* want = published[p - 5];
    f.rows.push_back(
        {name + " effective %", want[0], 100 * run.summary.effective_ratio.value_or(0)});
    f.rows.push_back({name + " TTFT s", want[1], run.summary.ttft_ms.mean() / 1e3});
    f.rows.push_back({name + " gap ms", want[2], run.summary.tpot_ms.mean()});
  }
  const auto effective = [&](uint64_t p) {
    return value_at(f, strf("%lluP%lluD effective %%", static_cast<unsigned long long>(p),
                            static_cast<unsigned long long>(16 - p)))
        .value_or(0);
  };
  const double near = std::max({effective(7), effective(8), effective(9)});
  f.claims = {{"capacity is highest where P:D is about 1:1 (7 to 9 of 16)",
               near >= std::max({effective(5), effective(6), effective(10), effective(11)})},
              {"more prefill nodes lower TTFT", rising(f, {"11P5D TTFT s", "5P11D TTFT s"})},
              {"and raise the time between tokens", rising(f, {"5P11D gap ms", "11P5D gap ms"})}};
  return f;
}

}  // namespace mc::sim
