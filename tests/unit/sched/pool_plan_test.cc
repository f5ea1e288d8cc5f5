#include "sched/pool_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"

using namespace mc;
using namespace mc::sched;

namespace pool_plan_test {

namespace {

// Where each block of a prompt is: stretches of 1 to `most` blocks in a place, or in none.
std::vector<PoolPlace> places(Random& random, size_t blocks, uint64_t most) {
  std::vector<PoolPlace> all;
  while (all.size() < blocks) {
    PoolPlace at;
    if (!random.chance(0.1))
      at = {random.chance(0.6) ? PoolTier::kMemory : PoolTier::kDisk,
            static_cast<uint16_t>(random.below(5))};
    all.resize(std::min<size_t>(blocks, all.size() + 1 + random.below(most)), at);
  }
  return all;
}

PoolMatch match_of(const std::vector<PoolPlace>& all) {
  PoolIndex index(all.size());
  std::vector<uint64_t> tags;
  for (size_t i = 0; i < all.size(); ++i) {
    tags.push_back(mix64(i + 1));
    index.put(tags.back(), all[i]);
  }
  return index.match(tags, all.size());
}

// Nodes from quick to slow, of both tiers.
Cost learned(Random& random) {
  Cost cost(cost::tiny());
  for (uint16_t n = 1; n < 5; ++n)
    for (const PoolTier tier : {PoolTier::kMemory, PoolTier::kDisk})
      for (int i = 0; i < 10; ++i)
        cost.learn_pool({{{tier, n}, 20'000}}, 2 + static_cast<double>(random.below(80)));
  return cost;
}

// The same block by block, as it is defined.
struct ByBlock {
  std::vector<double> gain_ms;  // of the best part that begins with block i
  std::vector<uint64_t> best_ends;
  std::vector<double> fetch_ms;  // of block i
  std::vector<PoolPlace> all;

  ByBlock(std::vector<PoolPlace> where, uint64_t tokens, uint64_t block_tokens, const Cost& cost)
      : all(std::move(where)) {
    all.resize(std::min<size_t>(all.size(), (tokens - 1) / block_tokens));
    gain_ms.resize(all.size());
    best_ends.resize(all.size());
    for (const PoolPlace& at : all)
      fetch_ms.push_back(static_cast<double>(block_tokens) * cost.pool_token_ms(at));
    for (size_t i = all.size(); i-- > 0;) {
      gain_ms[i] = cost.prefill_ms(tokens, i * block_tokens) -
                   cost.prefill_ms(tokens, (i + 1) * block_tokens) - fetch_ms[i];
      const bool goes_on = i + 1 < all.size() && has(i + 1) && gain_ms[i + 1] > 0;
      if (goes_on) gain_ms[i] += gain_ms[i + 1];
      best_ends[i] = goes_on ? best_ends[i + 1] : i + 1;
    }
  }
  bool has(size_t i) const { return i < all.size() && all[i].tier != PoolTier::kNone; }
  PoolPlan::Part part(uint64_t first, uint64_t end) const {
    PoolPlan::Part p{end - first, end > first ? Cost::kPoolRoundTripMs : 0};
    for (uint64_t i = first; i < end; ++i) p.ms += fetch_ms[i];
    return p;
  }
  PoolPlan::Part best(uint64_t first) const {
    if (!has(first) || gain_ms[first] <= Cost::kPoolRoundTripMs) return {};
    return part(first, best_ends[first]);
  }
  PoolPlan::Part whole(uint64_t first) const {
    uint64_t end = first;
    while (has(end)) ++end;
    return part(first, end);
  }
};

void same(const PoolPlan::Part& a, const PoolPlan::Part& b) {
  CHECK(a.blocks == b.blocks);
  CHECK(a.ms == doctest::Approx(b.ms));
}

}  // namespace

TEST_CASE("by pieces the plan is what it is block by block, from every block on") {
  Random random(11);
  size_t parts = 0, cut = 0;
  for (int round = 0; round < 400; ++round) {
    const Cost cost = learned(random);
    const uint64_t block_tokens = uint64_t{16} << random.below(5), blocks = 1 + random.below(150);
    const uint64_t tokens = blocks * block_tokens + random.below(3);
    const auto all = places(random, blocks, 1 + random.below(40));
    const PoolMatch pool = match_of(all);
    const PoolPlan plan(pool, tokens, block_tokens, cost);
    const ByBlock truth(all, tokens, block_tokens, cost);
    for (uint64_t first = 0; first <= blocks; ++first) {
      const PoolPlan::Part best = plan.best(first);
      same(best, truth.best(first));
      same(plan.whole(first), truth.whole(first));
      parts += best.blocks > 0;
      cut += best.blocks > 0 && best.blocks < truth.whole(first).blocks;
    }
  }
  CHECK(parts > 1000);  // both kinds were seen
  CHECK(cut > 300);
}

TEST_CASE("a match has a piece for neighbouring blocks in one place, however many they are") {
  std::vector<PoolPlace> all(2000, PoolPlace{PoolTier::kMemory, 3});
  CHECK(match_of(all).pieces().size() == 1);
  all[700] = {PoolTier::kDisk, 3};
  all[1999] = {};
  const PoolMatch m = match_of(all);
  REQUIRE(m.pieces().size() == 4);
  CHECK(m.pieces()[2].first == 701);
  CHECK(m.pieces()[2].end == 1999);
  CHECK(m.size() == 2000);
}

TEST_CASE("a match by pieces has the places and runs that it has block by block") {
  Random random(12);
  for (int round = 0; round < 100; ++round) {
    const size_t blocks = 1 + random.below(60);
    const auto all = places(random, blocks, 1 + random.below(10));
    const PoolMatch m = match_of(all);
    if (m.empty()) continue;
    REQUIRE(m.size() == blocks);
    for (size_t first = 0; first < blocks; ++first) {
      CHECK(m.place(first) == all[first]);
      const size_t end = first + random.below(blocks + 2 - first);
      PoolRun run;
      for (size_t i = first; i < std::min(end, blocks) && all[i].tier != PoolTier::kNone; ++i)
        ++(all[i].tier == PoolTier::kDisk ? run.disk : run.memory);
      CHECK(m.run(first, end).memory == run.memory);
      CHECK(m.run(first, end).disk == run.disk);
    }
  }
}

TEST_CASE("no tokens and no pool give no plan") {
  const Cost cost(cost::tiny());
  const PoolMatch none;
  CHECK(PoolPlan(none, 1000, 16, cost).best(0).blocks == 0);
  const PoolMatch some = match_of(std::vector<PoolPlace>(4, PoolPlace{PoolTier::kMemory, 1}));
  CHECK(PoolPlan(some, 0, 16, cost).best(0).blocks == 0);
  CHECK(PoolPlan(some, 16, 16, cost).whole(0).blocks == 0);  // one token is computed
  CHECK(PoolPlan(some, 17, 16, cost).whole(0).blocks == 1);
  CHECK(PoolPlan(some, 65, 16, cost).whole(9).blocks == 0);
}

}  // namespace pool_plan_test
