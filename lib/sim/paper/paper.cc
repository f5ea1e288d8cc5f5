#include "sim/paper/paper.h"

#include <algorithm>
#include <cmath>

#include "sim/paper/paper_figures.h"

namespace mc::sim {
std::vector<Workload> workloads(const PaperInput& in) {
  return {{"conversation", in.conversation},
          {"tool&agent", in.tool_agent},
          {"synthetic", in.documents}};
}

StudyOptions cluster(uint64_t prefill, uint64_t decode) {
  StudyOptions o;
  o.sim.prefill = prefill;
  o.sim.decode = decode;
  o.sim.queue_timeout = o.sim.prefill_timeout = {};  // the published systems give nobody up
  return o;
}

StudyOptions promising(StudyOptions o, Duration ttft, Duration tbt) {
  o.sim.admission.ttft_slo = ttft;
  o.sim.admission.tbt_slo = tbt;
  return o;
}

std::optional<double> value_at(const PaperFigure& f, const std::string& what) {
  for (const PaperRow& r : f.rows)
    if (r.what == what) return r.ours;
  return std::nullopt;
}

bool rising(const PaperFigure& f, const std::vector<std::string>& rows) {
  for (size_t i = 1; i < rows.size(); ++i)
    if (!(value_at(f, rows[i - 1]) < value_at(f, rows[i]))) return false;
  return true;
}

StudyOptions baseline(const char* engine, uint64_t cache_tokens) {
  StudyOptions o = cluster(8, 8);
  o.sim.engine = engine;
  o.sim.cache_tokens = cache_tokens;
  o.sim.policy.policy = "rr";
  return o;
}

Result<Run> simulated(const PaperInput& in, const trace::Trace& t, StudyOptions o) {
  o.play.seed = in.seed;
  o.sim.decode_tokens = std::max<uint64_t>(o.sim.decode_tokens, 200'000);
  MC_TRY(auto runs, run_study(t, in.spec, o));
  return std::move(runs[0]);
}

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

double within_percent(const Run& run, double ms) {
  return 100 * run.summary.tbt_ms.share_up_to(ms);
}

namespace {

struct FigureEntry {
  const char* id;
  Result<PaperFigure> (*make)(const PaperInput&);
};
constexpr FigureEntry kPaper[] = {{"eq2", equation2},  {"table3", table3},  {"fig1", figure1},
                                  {"fig5", figure5},   {"fig6-7", figure6}, {"fig8", figure8},
                                  {"fig13", figure13}, {"fig14", figure14}, {"fig15", figure15},
                                  {"fig16", figure16}, {"fig17", figure17}, {"fig18", figure18},
                                  {"fig19", figure19}, {"fig20", figure20}, {"fig21", figure21},
                                  {"fig22", figure22}, {"fig23", figure23}, {"table4", table4},
                                  {"table5", table5},  {"fig24", figure24}, {"fig25", figure25}};

}  // namespace

std::vector<std::string> paper_figures() {
  std::vector<std::string> out;
  for (const FigureEntry& e : kPaper) out.push_back(e.id);
  return out;
}

namespace {

bool compared_with(const PaperRow& r) { return r.published && r.ours && r.judged; }

std::string claims_of(const PaperFigure& f) {
  const auto held =
      std::count_if(f.claims.begin(), f.claims.end(), [](const PaperClaim& c) { return c.holds; });
  return strf("%td of %zu statements hold", held, f.claims.size());
}

std::string values_of(const PaperFigure& f) {
  double worst = 0;
  size_t compared = 0, pairs = 0, alike = 0;
  std::string where;
  for (const PaperRow& r : f.rows) {
    if (!compared_with(r)) continue;
    ++compared;
    const double off = std::abs(*r.ours / *r.published - 1);
    if (off > worst) where = r.what;
    worst = std::max(worst, off);
    for (const PaperRow& other : f.rows) {
      if (!compared_with(other) || *other.published <= *r.published * 1.05) continue;
      ++pairs;
      alike += *other.ours > *r.ours;
    }
  }
  if (compared == 0)
    return f.rows.empty() || f.rows[0].ours ? "no published numbers to compare" : "not simulated";
  if (worst <= f.tolerance)
    return strf("agrees: every value within %.0f %%", std::ceil(100 * worst));
  const std::string off = strf("up to %.0f %% off (%s)", 100 * worst, where.c_str());
  if (alike == pairs) return "the order agrees; values are " + off;
  const double share = static_cast<double>(alike) / static_cast<double>(pairs);
  return strf("%s: %.0f %% of pairs rank alike; values are ", share < 0.5 ? "disagrees" : "partly",
              100 * share) +
         off;
}

}  // namespace

std::string verdict_of(const PaperFigure& f) {
  if (f.claims.empty()) return values_of(f);
  const bool values = std::any_of(f.rows.begin(), f.rows.end(), compared_with);
  return values ? claims_of(f) + "; " + values_of(f) : claims_of(f);
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
  for (const FigureEntry& e : kPaper) {
    if (!ids.empty() && std::find(ids.begin(), ids.end(), e.id) == ids.end()) continue;
    MC_TRY(PaperFigure figure, e.make(input));
    figure.verdict = verdict_of(figure);
    out.push_back(std::move(figure));
  }
  return out;
}

}  // namespace mc::sim
