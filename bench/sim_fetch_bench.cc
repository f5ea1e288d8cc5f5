// What fetching prefixes from other nodes costs or gains in the simulator, by the rate of the
// links: the mean TTFT of thirty made traces on 4 + 4 nodes, with the policies kvcache and local.
#include <filesystem>

#include "bench/figure.h"
#include "bench/made_conversations.h"
#include "cmd/command.h"
#include "sim/cluster/cluster.h"

namespace mc {
namespace {

using bench::Measured;

struct BenchOptions : bench::Options {
  std::string configs;
};

// In seconds, over so many traces.
Result<double> mean_ttft(const cost::ModelSpec& spec, double gbps, const char* policy,
                         uint64_t traces) {
  double sum = 0;
  for (uint64_t seed = 1; seed <= traces; ++seed) {
    const trace::Trace t = bench::made_conversations(seed, 300);
    MC_TRY(const auto arrivals, trace::schedule(t, {}));
    sim::SimOptions o;
    o.prefill = o.decode = 4;
    o.nic_gbps = gbps;
    o.policy.policy = policy;
    MC_TRY(const auto out, sim::simulate(t, arrivals, spec, o));
    double ms = 0;
    for (const trace::RequestResult& r : out.requests) {
      if (!r.ttft_ms) return fail(Code::kInternal, "a request was lost");
      ms += *r.ttft_ms;
    }
    sum += ms / 1e3 / static_cast<double>(out.requests.size());
  }
  return sum / static_cast<double>(traces);
}

Result<int> run(const BenchOptions& o) {
  MC_TRY(const auto spec, cost::load_spec(o.configs + "/models/llama3-70b.json"));
  const uint64_t traces = o.quick ? 3 : 30;
  for (const double gbps : {25., 40., 50., 100., 400.}) {
    const std::string name = strf("TTFT at %.0f Gbit/s", gbps);
    const auto by = [&](const char* policy) {
      return [&spec, gbps, policy, traces]() -> Result<Measured> {
        MC_TRY(const double s, mean_ttft(spec, gbps, policy, traces));
        return Measured(s);
      };
    };
    MC_TRY_(bench::compare({"sim-fetch", name, "s", "no fetches", 0, true}, 1, by("kvcache"),
                           by("local")));
  }
  return 0;
}

}  // namespace
}  // namespace mc

int main(int argc, char** argv) {
  mc::BenchOptions options;
  options.configs = (std::filesystem::path(argv[0]).parent_path() / "../../configs").string();
  mc::Program program("sim_fetch_bench",
                      "what fetching prefixes costs or gains, by the links' rate");
  program.options(options);
  program.run_with([&](mc::Context&) { return mc::run(options); });
  return program.main(argc, argv);
}
