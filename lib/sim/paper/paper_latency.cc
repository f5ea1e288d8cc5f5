// Time between tokens and to the first one: Figures 1, 5, 13, 14.
#include <algorithm>
#include <cmath>

#include "sim/paper/paper_figures.h"
#include "trace/analyze/stats.h"

namespace mc::sim {

namespace {

struct TbtPublished {
  const char* id;
  const char* title;
  double at[4][3];  // mooncake, vLLM, with prefix cache, chunked; within 100, 200, 300 ms
};

Result<PaperFigure> tbt(const PaperInput& in, const trace::Trace& t,
                        const TbtPublished& published) {
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
  bool best = true;
  for (const double l : limits)
    for (size_t s = 1; s < 4; ++s)
      best = best && value_at(f, strf("mooncake within %.0f ms", l)) >
                         value_at(f, strf("%s within %.0f ms", names[s], l));
  f.claims = {{"more requests keep each promise than with any of the baselines", best}};
  return f;
}

}  // namespace

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
                "The queue estimate is exact here, and not exact in a real cluster.",
                {}};
  const char* policies[] = {"kvcache", "local", "count", "random"};
  const char* names[] = {"global cache", "local cache", "fewest requests", "random"};
  const double published[] = {3.07, 3.58, 5.27, 19.65};
  const double speeds[] = {1, 0.8, 0.6};
  bool ordered = true;
  std::vector<double> gain;
  for (const double speed : speeds) {
    std::vector<double> ttft_s;
    for (size_t i = 0; i < 4; ++i) {
      StudyOptions o = cluster(6, 10);
      o.play.speed = speed;
      o.sim.policy.policy = policies[i];
      MC_TRY(const Run run, simulated(in, in.conversation, o));
      ttft_s.push_back(run.summary.ttft_ms.mean() / 1e3);
      if (speed == 1)
        f.rows.push_back({names[i], published[i], ttft_s[i]});
      else
        f.rows.push_back({strf("%s, at %g x speed", names[i], speed), {}, ttft_s[i]});
    }
    ordered = ordered && std::is_sorted(ttft_s.begin(), ttft_s.end());
    gain.push_back(100 * (1 - ttft_s[0] / ttft_s[1]));
  }
  f.rows.push_back({"global by local: TTFT lower by %", 14, gain[0]});
  f.claims = {{"global < local < fewest requests < random, at each speed", ordered},
              {"the gain of global over local grows with the load", gain[0] > gain[2]}};
  return f;
}

}  // namespace mc::sim
