// How fast mc-replay thinks, on one core: an hour of conversation on 16 nodes, the LRU curve of it,
// and a million requests over ten thousand nodes (a fiftieth of that with --quick). The peers are
// the budgets, and for the large cluster the small one: the cost of a request must not grow.
#include <filesystem>

#include "base/json.h"
#include "bench/figure.h"
#include "cmd/command.h"
#include "sim/cluster.h"
#include "trace/eviction.h"
#include "trace/synth.h"

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

Result<double> simulate(const Clock& clock, const trace::Trace& t, const spec::ModelSpec& spec,
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

Result<int> run(const BenchOptions& o) {
  const SteadyClock clock;
  MC_TRY(const auto spec, spec::load_spec(o.configs + "/models/llama3-70b.json"));
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
  // The same requests a second and node as in the hour.
  const uint64_t requests = o.quick ? 20'000 : 1'000'000, nodes = o.quick ? 200 : 10'000;
  MC_TRY(const trace::Trace many, synthesized(o, requests));
  const double speed = static_cast<double>(nodes) / 16;
  const std::string name = std::to_string(requests) + " on " + std::to_string(nodes) + " nodes";
  MC_TRY(const double took, simulate(clock, many, spec, nodes, speed));
  const double each = took / static_cast<double>(requests);
  MC_TRY_(bench::compare(
      {"sim-speed", name, "us a request", "16 nodes", 0, true}, 1,
      [&] { return Result<Measured>(each * 1e6); },
      [&]() -> Result<Measured> {
        MC_TRY(const double s, simulate(clock, hour, spec, 16, 1));
        return Measured(s / static_cast<double>(hour.records.size()) * 1e6);
      }));
  if (!o.quick)
    MC_TRY_(against_budget((name + ", in all").c_str(), 1, 300, "5 minutes",
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
