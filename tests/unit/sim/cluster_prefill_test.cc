// Prompts on a simulated prefill node: who overtakes whom, and what they share.
#include <doctest/doctest.h>

#include <filesystem>

#include "sim/cluster/cluster.h"

namespace mc::sim {
namespace cluster_prefill_test {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kBlock = 512;

void add(trace::Trace& t, uint64_t ms, uint64_t first, uint64_t blocks) {
  trace::TraceRequest r;
  r.timestamp_ms = ms;
  r.input_length = blocks * kBlock;
  r.output_length = 1;
  for (uint64_t i = 0; i < blocks; ++i) r.hash_ids.push_back(first + i);
  t.records.push_back(std::move(r));
}

SimResult run(const trace::Trace& t, const SimOptions& o) {
  const auto here = std::filesystem::path(__FILE__).parent_path();
  const auto spec = cost::load_spec(
      (here / "../../../configs/models/llama3-70b.json").lexically_normal().string());
  REQUIRE(spec);
  const auto arrivals = trace::schedule(t, {});
  REQUIRE(arrivals);
  const auto out = simulate(t, *arrivals, *spec, o);
  REQUIRE(out);
  return *out;
}

}  // namespace

TEST_CASE("a short prompt overtakes one that runs after its chunk, and they share what they have") {
  trace::Trace t;
  add(t, 0, 0, 128);
  add(t, 1000, 0, 40);  // a part of it
  SimOptions o;
  o.prefill = o.decode = 1;
  o.prefill_order = "srpf";
  const SimResult r = run(t, o);
  o.prefill_chunk = UINT64_MAX;  // it runs to its end
  const SimResult whole = run(t, o);
  CHECK(*r.requests[1].queue_ms < 300);
  CHECK(*whole.requests[1].queue_ms > 3000);
  // The short one has what the long one had computed, and the long one goes on behind both.
  CHECK(*r.requests[1].cached > 0);
  CHECK(*r.requests[1].cached < 39 * kBlock);
  CHECK(*r.requests[0].cached == 40 * kBlock - *r.requests[1].cached);
  CHECK(*whole.requests[0].cached == 0);
  CHECK(*r.requests[0].e2e_ms == doctest::Approx(*whole.requests[0].e2e_ms).epsilon(0.05));
  CHECK(*r.requests[0].queue_ms > to_ms(o.overhead) + 100);  // while the other was computed
  CHECK(r.prefill_busy_s < *r.requests[0].ttft_ms / 1e3 + 0.1);
}

TEST_CASE("what a prompt found is still there when its turn comes") {
  trace::Trace t;
  add(t, 0, 0, 40);
  add(t, 10'000, 1000, 20);
  add(t, 10'100, 2000, 50);  // has no room beside the first two
  add(t, 10'200, 0, 41);     // as the first, and one more
  SimOptions o;
  o.prefill = o.decode = 1;
  o.cache_tokens = 100 * kBlock;
  const SimResult r = run(t, o);
  CHECK(*r.requests[2].cached == 0);
  CHECK(*r.requests[3].queue_ms > 1000);  // the others were computed first
  CHECK(*r.requests[3].cached == 40 * kBlock);
}

TEST_CASE("a prompt that is given up leaves the node after its chunk") {
  trace::Trace t;
  add(t, 0, 0, 240);  // 20 seconds each
  add(t, 100, 1000, 240);
  SimOptions o;
  o.prefill = 2;
  o.decode = 2;
  o.policy.policy = "rr";
  const double alone = run(t, o).prefill_busy_s;
  o.fault = {"d0@5s", "d1@5s"};
  const SimResult r = run(t, o);
  CHECK(r.requests[0].status == trace::Status::kFailed);
  CHECK(r.wasted_prefill_s == doctest::Approx(2 * 4.95 - 0.1));
  CHECK(r.prefill_busy_s == 0);  // of prompts that were computed to their end
  CHECK(alone > 30);
  for (const double share : r.prefill_busy_share) {
    CHECK(share * r.duration_s > 4.85);
    CHECK(share * r.duration_s < 5.3);
  }
}

}  // namespace cluster_prefill_test
}  // namespace mc::sim
