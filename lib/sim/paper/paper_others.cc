// Measurements of other systems and machines, where only the shape compares: Figure 20, Table 5,
// Figures 24 and 25.
#include <algorithm>

#include "sim/paper/paper_figures.h"
#include "trace/play/reshape.h"

namespace mc::sim {
namespace {

Result<trace::Trace> all_alike(uint64_t input, uint64_t output, double qps) {
  trace::FixedShape shape;
  shape.input = input;
  shape.output = output;
  shape.qps = qps;
  trace::Trace t;
  t.name = "fixed";
  MC_TRY(t.records, trace::fixed(shape));
  return t;
}

}  // namespace

Result<PaperFigure> figure20(const PaperInput&) {
  PaperFigure f{"fig20",
                "Time to move 40 GB between nodes",
                "s",
                "a measurement of real NICs, 4 x 200 and 8 x 400 Gbit/s",
                {},
                0.15,
                "Nothing to simulate: mc-xfer bench --preset fig20 measures it on your machines.",
                {}};
  f.rows = {{"transfer engine, 4 x 200", 0.451, {}},
            {"transfer engine, 8 x 400", 0.211, {}},
            {"TCP, 4 x 200", 1.08, {}},
            {"TCP, 8 x 400", 0.97, {}},
            {"Gloo, 4 x 200", 3.38, {}},
            {"Gloo, 8 x 400", 3.42, {}}};
  return f;
}

Result<PaperFigure> table5(const PaperInput& in) {
  PaperFigure f{
      "table5",
      "Disaggregated against coupled serving, other systems (shape only)",
      "TTFT s; requests/s; times",
      "200 requests of 2000 tokens and 100 to answer, evenly apart; our model, 4 nodes of prefill "
      "and 2 of decode against one coupled node. The paper does not say how many it has: its own "
      "numbers imply one, with at most 0.65 requests a second where a prompt alone takes 1.23 s",
      {},
      0.5,
      "Published for SGLang on H20 GPUs, with another model: only the gain of 4P2D compares. "
      "Against six coupled nodes it gains nothing here: those compute prompts first, so that six "
      "answer sooner than four, and they decode on three times as many nodes.",
      {}};
  struct Published {
    double qps, ttft_s[2], completed[2];  // coupled, 4P2D
  };
  const Published published[] = {{1, {1.234, 1.302}, {0.29, 0.29}},
                                 {4, {4.570, 1.564}, {0.55, 0.98}},
                                 {8, {9.629, 1.969}, {0.65, 1.77}}};
  const char* const names[] = {"coupled", "4P2D", "six coupled"};
  for (const Published& p : published) {
    MC_TRY(const trace::Trace t, all_alike(2000, 100, p.qps));
    double ttft_s[3], completed[3], gap_ms[3];
    for (size_t i = 0; i < 3; ++i) {
      StudyOptions o = i == 1 ? cluster(4, 2) : baseline("coupled", 0);
      o.sim.prefill = i == 0 ? 1 : 4;
      o.sim.decode = i == 0 ? 0 : 2;
      MC_TRY(const Run run, simulated(in, t, o));
      ttft_s[i] = run.summary.ttft_ms.mean() / 1e3;
      completed[i] = run.summary.completed_rps.value_or(0);
      gap_ms[i] = run.summary.tpot_ms.mean();
    }
    const std::string rate = strf("%.0f a second", p.qps);
    for (size_t i = 0; i < 2; ++i) {
      f.rows.push_back({rate + ", " + names[i] + ": TTFT", p.ttft_s[i], ttft_s[i], false});
      f.rows.push_back(
          {rate + ", " + names[i] + ": completed/s", p.completed[i], completed[i], false});
    }
    f.rows.push_back(
        {rate + ": TTFT, 4P2D by coupled", p.ttft_s[1] / p.ttft_s[0], ttft_s[1] / ttft_s[0]});
    f.rows.push_back({rate + ": completed/s, 4P2D by coupled", p.completed[1] / p.completed[0],
                      completed[1] / completed[0]});
    f.rows.push_back({rate + ": TTFT, 4P2D by six coupled", {}, ttft_s[1] / ttft_s[2]});
    f.rows.push_back(
        {rate + ": time between tokens, 4P2D by six coupled", {}, gap_ms[1] / gap_ms[2]});
  }
  const auto of = [&](const char* what) { return value_at(f, what).value_or(0); };
  const double one = of("1 a second: TTFT, 4P2D by coupled");
  f.claims = {{"at 1 a second TTFT is much the same (within a half)", one > 0.67 && one < 1.5},
              {"at 8 a second it is a fifth with prefill and decode apart, or less",
               of("8 a second: TTFT, 4P2D by coupled") < 0.21},
              {"the more requests come, the more are completed than by the coupled one",
               rising(f, {"1 a second: completed/s, 4P2D by coupled",
                          "4 a second: completed/s, 4P2D by coupled",
                          "8 a second: completed/s, 4P2D by coupled"})}};
  return f;
}

Result<PaperFigure> figure24(const PaperInput& in) {
  PaperFigure f{
      "fig24",
      "TTFT by rate and split, SGLang (shape only)",
      "s",
      "200 requests of 2000 tokens and 100 to answer, evenly apart; 16 nodes; a quarter "
      "of the published rates, as our nodes are A800 and theirs H200",
      {},
      0.15,
      "Only what the text says of the published curves is compared. With 12P4D the rise here comes "
      "from the first decode step, on four nodes with large batches (3.8 ms a request).",
      {}};
  const uint64_t prefill[] = {4, 8, 12};
  double grows[3];
  for (size_t i = 0; i < 3; ++i) {
    double first = 0, last = 0;
    for (const double rate : {16.0, 32.0, 64.0}) {
      MC_TRY(const trace::Trace t, all_alike(2000, 100, rate / 4));
      MC_TRY(const Run run, simulated(in, t, cluster(prefill[i], 16 - prefill[i])));
      last = run.summary.ttft_ms.mean() / 1e3;
      if (rate == 16) first = last;
      f.rows.push_back(
          {strf("%lluP%lluD, %.0f a second", static_cast<unsigned long long>(prefill[i]),
                static_cast<unsigned long long>(16 - prefill[i]), rate / 4),
           {},
           last});
    }
    grows[i] = 100 * (last / first - 1);
  }
  f.rows.push_back({"8P8D: rises by %", 39, grows[1]});
  f.rows.push_back({"12P4D: rises by %", 29, grows[2]});
  f.claims = {{"with 4 prefill nodes TTFT suffers most from the highest rate: prefill is saturated",
               grows[0] > 2 * std::max(grows[1], grows[2])},
              {"with 8 and 12 it rises by less than a half", std::max(grows[1], grows[2]) < 50}};
  return f;
}

Result<PaperFigure> figure25(const PaperInput& in) {
  PaperFigure f{"fig25",
                "TTFT by what moves the KV, vLLM (shape only)",
                "s, %",
                "200 requests of 1024 tokens and 6 to answer at 2 a second; transfers at the 87 "
                "GB/s of RDMA, and 2.4 times slower for TCP (both of Figure 20)",
                {},
                0.15,
                "Published for a 7B model on A10 GPUs; Redis is not modelled.",
                {}};
  MC_TRY(const trace::Trace t, all_alike(1024, 6, 2));
  const double published[] = {0.89, 0.86};  // (1 - 0.26) / (1 - 0.17), (1 - 0.33) / (1 - 0.22)
  const uint64_t prefill[] = {1, 2};
  bool faster = true;
  for (size_t i = 0; i < 2; ++i) {
    double ttft_s[2];
    for (const bool tcp : {false, true}) {
      StudyOptions o = cluster(prefill[i], 1);
      o.sim.nic_gbps = in.spec.cost.transfer_bytes_per_s * 8 / 1e9 / (tcp ? 2.4 : 1);
      MC_TRY(const Run run, simulated(in, t, o));
      ttft_s[tcp] = run.summary.ttft_ms.mean() / 1e3;
      f.rows.push_back(
          {strf("%lluP1D, %s", static_cast<unsigned long long>(prefill[i]), tcp ? "TCP" : "RDMA"),
           {},
           ttft_s[tcp]});
    }
    faster = faster && ttft_s[0] < ttft_s[1];
    f.rows.push_back({strf("%lluP1D: RDMA by TCP", static_cast<unsigned long long>(prefill[i])),
                      published[i], ttft_s[0] / ttft_s[1]});
  }
  f.claims = {{"the first token comes sooner by RDMA than by TCP", faster}};
  return f;
}

}  // namespace mc::sim
