// What a pipeline of processes is predicted to take, against its schedule computed chunk by chunk.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "sched/cost.h"
#include "sched/policy.h"

namespace mc::sched {
namespace pipeline_cost_test {
namespace {

cost::ModelSpec spec_of(uint32_t layers) {
  cost::ModelSpec spec = cost::tiny();
  spec.layers = layers;
  return spec;
}

// The stages in virtual time, each with its slice of the layers, as the workers of the dummy engine
// have it: a stage computes a chunk when the one before it has, and its own last one is done.
double schedule_ms(const cost::ModelSpec& spec, uint64_t tokens, uint64_t reused,
                   const Pipeline& node) {
  std::vector<double> free_at(node.stages, 0);
  for (uint32_t s = 0; s < node.stages; ++s) {  // its part of the reused KV is loaded first
    const cost::ModelSpec slice = *cost::slice_of(spec, s, node.stages);
    free_at[s] =
        static_cast<double>(reused * slice.kv_bytes_per_token()) / slice.cost.load_bytes_per_s;
  }
  for (uint64_t begin = reused; begin < tokens; begin += node.chunk_tokens) {
    const uint64_t end = std::min(tokens, begin + node.chunk_tokens);
    double here = 0;
    for (uint32_t s = 0; s < node.stages; ++s) {
      const cost::CostModel c = cost::slice_of(spec, s, node.stages)->cost;
      const auto b = static_cast<double>(begin), e = static_cast<double>(end);
      here = free_at[s] = std::max(free_at[s], here) + (begin == reused ? c.c0 : 0) +
                          c.c1 * (e - b) + c.c2 * (e * e - b * b);
    }
  }
  return 1e3 * free_at.back();
}

TEST_CASE("F67: a pipeline is predicted by its stages and chunks, within a tenth") {
  for (const uint32_t layers : {4u, 5u, 32u})
    for (const Pipeline node : {Pipeline{2, 64}, Pipeline{2, 1024}, Pipeline{4, 256}})
      for (const uint64_t tokens : {1u, 64u, 65u, 1000u, 4096u, 30'000u})
        for (const uint64_t reused : {uint64_t{0}, tokens / 2 / 16 * 16}) {
          const Cost cost(spec_of(layers));
          const double is = schedule_ms(cost.spec(), tokens, reused, node);
          CAPTURE(layers);
          CAPTURE(node.stages);
          CAPTURE(tokens);
          CAPTURE(reused);
          CHECK(cost.prefill_ms(tokens, reused, node) == doctest::Approx(is).epsilon(0.1));
        }
  const Cost cost(spec_of(4));
  CHECK(cost.prefill_ms(8192, 0, {2, 64}) < 0.6 * cost.prefill_ms(8192, 0));  // not one process
  CHECK(cost.prefill_ms(8192, 0, {1, 64}) == cost.prefill_ms(8192, 0));
}

TEST_CASE("what a pipeline took corrects the factor of all workers as one process does") {
  Cost cost(cost::tiny());
  const Pipeline two{2, 256};
  for (int i = 0; i < 100; ++i)
    cost.learn_prefill(8192, 0, schedule_ms(cost.spec(), 8192, 0, two), two);
  CHECK(cost.prefill_factor() == doctest::Approx(1).epsilon(0.02));
}

TEST_CASE("the policy prefers two stages to one process, and says how long they take") {
  const Cost cost(cost::tiny());
  View view;
  view.prefill.push_back({.name = "one"});
  view.prefill.push_back({.name = "two", .pipeline = {2, 256}});
  view.decode.push_back({.name = "d"});
  const Ask ask{.tokens = 8192, .block_tokens = 16};
  const Decision d = choose(view, ask, {}, cost);
  REQUIRE(d.verdict == Verdict::kAccept);
  CHECK(d.chosen.name == "two");
  CHECK(d.chosen.prefill_ms ==
        doctest::Approx(schedule_ms(cost.spec(), 8192, 0, {2, 256})).epsilon(0.1));
}

}  // namespace
}  // namespace pipeline_cost_test
}  // namespace mc::sched
