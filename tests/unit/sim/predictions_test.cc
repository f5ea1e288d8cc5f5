// What the conductor's machine predicts, and what comes of it, in simulated clusters.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "bench/made_conversations.h"
#include "sim/cluster/cluster.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::sim;

namespace {

cost::ModelSpec large_model() {
  const auto here = std::filesystem::path(__FILE__).parent_path();
  const auto spec = cost::load_spec(
      (here / "../../../configs/models/llama3-70b.json").lexically_normal().string());
  REQUIRE(spec);
  return *spec;
}

std::vector<trace::RequestResult> served(const trace::Trace& t, const SimOptions& o) {
  const auto arrivals = trace::schedule(t, {});
  REQUIRE(arrivals);
  const auto out = simulate(t, *arrivals, large_model(), o);
  REQUIRE(out);
  for (const trace::RequestResult& r : out->requests) REQUIRE(r.status == trace::Status::kOk);
  return out->requests;
}

double mean_ttft_ms(const std::vector<trace::RequestResult>& requests) {
  double sum = 0;
  for (const trace::RequestResult& r : requests) sum += *r.ttft_ms;
  return sum / static_cast<double>(requests.size());
}

}  // namespace

TEST_CASE("F64: fetching costs little where the network is slow, and gains where it is not") {
  struct Network {
    double gbps, most;  // most: of the TTFT without fetches
  };
  for (const Network& n :
       {Network{25, 1.03}, Network{40, 1.03}, Network{100, 1}, Network{400, 0.95}}) {
    CAPTURE(n.gbps);
    double fetching = 0, without = 0;
    for (uint64_t seed = 1; seed <= fewer(3); ++seed) {
      const trace::Trace t = bench::made_conversations(seed, 300);
      SimOptions o;
      o.prefill = o.decode = 4;
      o.nic_gbps = n.gbps;
      o.policy.policy = "kvcache";
      fetching += mean_ttft_ms(served(t, o));
      o.policy.policy = "local";
      without += mean_ttft_ms(served(t, o));
    }
    CHECK(fetching <= n.most * without);
  }
}

TEST_CASE("F66: the mean error of predicted TTFT is a tenth at most on the recorded trace") {
  const char* shared = std::getenv("MC_TEST_SHARED");
  const std::string path = std::string(shared ? shared : "") + "/traces/conversation_trace.jsonl";
  if (!shared || !std::filesystem::exists(path)) {
    std::printf("skipped: needs conversation_trace.jsonl; set MC_TEST_SHARED\n");
    return;
  }
  const auto t = trace::read_trace(path, {.limit = 3000});
  REQUIRE(t);
  const auto requests = served(*t, {});
  double off = 0;
  for (const trace::RequestResult& r : requests) off += std::abs(*r.predicted_ttft_ms - *r.ttft_ms);
  CHECK(off / static_cast<double>(requests.size()) <= 0.1 * mean_ttft_ms(requests));
}
