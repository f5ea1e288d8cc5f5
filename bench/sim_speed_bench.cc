// How fast mc-replay thinks, on one core: an hour of conversation on 16 nodes, the LRU curve of it,
// a hundred thousand requests over 16, 200, 2,000 and 10,000 nodes, and, but for --quick, a million
// over 10,000. The peers are the budgets, and for large clusters the small one: the cost of a
// request must not grow.
#include <filesystem>

#include "base/json.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "sim/cluster/cluster.h"
#include "trace/analyze/eviction.h"
#include "trace/synth/synth.h"

namespace mc {
namespace {

using bench::Measured;

struct BenchOptions : bench::Options {
  std::string trace, configs;
  void describe(OptionList& v) {
    bench::Options::describe(v);
    v("trace", trace, "a recorded trace; empty: one of the conversation profile");
  }
};

Result<trace::Trace> synthesized(const BenchOptions& o, uint64_t requests) {
  const std::string path = o.configs + "/profiles/conversation.json";
  MC_TRY(const Json profile, read_json_file(path));
  trace::Trace t;
  t.name = "conversation profile";
  MC_TRY(t.records, trace::synthesize(profile, path, {.seed = 1, .requests = requests}));
  return t;
}

Result<double> seconds(const Clock& clock, const std::function<Result<>()>& work) {
  const Time start = clock.now();
  MC_TRY_(work());
  return to_seconds(clock.now() - start);
}

Result<double> simulate(const Clock& clock, const trace::Trace& t, const cost::ModelSpec& spec,
                        uint64_t nodes, double speed) {
  MC_TRY(const auto arrivals, trace::schedule(t, {.speed = speed}));
  sim::SimOptions o;
  o.prefill = o.decode = nodes / 2;
  return seconds(clock, [&]() -> Result<> {
    MC_TRY(const auto result, sim::simulate(t, arrivals, spec, o));
    for (const auto& r : result.requests)
      if (r.status != trace::Status::kOk) return fail(Code::kInternal, "a request was lost");
    return {};
  });
}

Result<> against_budget(const char* name, size_t turns, double budget_s, const char* budget,
                        const std::function<Result<double>()>& ours) {
  const bench::Figure figure{"sim-speed", name, "s", budget, 1, true};
  return bench::compare(
      figure, turns,
      [&]() -> Result<Measured> {
        MC_TRY(const double s, ours());
        return Measured(s);
      },
      [budget_s] { return Result<Measured>(budget_s); });
}

// What a request costs on that many nodes, as many a second and node as in the hour. Seconds.
Result<double> large(const Clock& clock, const trace::Trace& t, const cost::ModelSpec& spec,
                     uint64_t nodes, double small_us) {
  MC_TRY(const double took, simulate(clock, t, spec, nodes, static_cast<double>(nodes) / 16));
  const auto requests = static_cast<double>(t.records.size());
  const std::string name =
      std::to_string(t.records.size()) + " on " + std::to_string(nodes) + " nodes";
  MC_TRY_(bench::compare(
      {"sim-speed", name, "us a request", "16 nodes", 0, true}, 1,
      [&] { return Result<Measured>(took / requests * 1e6); },
      [&] { return Result<Measured>(small_us); }));
  return took;
}

Result<int> run(const BenchOptions& o) {
  const SteadyClock clock;
  MC_TRY(const auto spec, cost::load_spec(o.configs + "/models/llama3-70b.json"));
  trace::Trace hour;
  if (o.trace.empty()) {
    MC_TRY(hour, synthesized(o, 0));
  } else {
    MC_TRY(hour, trace::read_trace(o.trace));
  }
  const size_t turns = o.quick ? 3 : 7;
  MC_TRY_(against_budget("an hour on 16 nodes", turns, 1, "1 second",
                         [&] { return simulate(clock, hour, spec, 16, 1); }));
  MC_TRY_(against_budget("LRU curve of it", turns, 0.3, "0.3 seconds", [&] {
    return seconds(clock, [&]() -> Result<> {
      const auto curve = trace::lru_curve(hour.records, hour.block_tokens, {195, 1953, 19531});
      if (curve.blocks == 0) return fail(Code::kInternal, "an empty curve");
      return {};
    });
  }));
  MC_TRY(const trace::Trace few, synthesized(o, 100'000));
  MC_TRY(const double small, simulate(clock, few, spec, 16, 1));
  const double small_us = small / static_cast<double>(few.records.size()) * 1e6;
  for (const uint64_t nodes : {200u, 2'000u, 10'000u})
    MC_TRY_(large(clock, few, spec, nodes, small_us));
  if (o.quick) return 0;
  MC_TRY(const trace::Trace many, synthesized(o, 1'000'000));
  MC_TRY(const double took, large(clock, many, spec, 10'000, small_us));
  MC_TRY_(against_budget("1000000 on 10000 nodes, in all", 1, 300, "5 minutes",
                         [&] { return Result<double>(took); }));
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::BenchOptions options;
  options.configs = (std::filesystem::path(argv[0]).parent_path() / "../../configs").string();
  mc::Program program("sim_speed_bench", "how fast mc-replay simulates and counts");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
