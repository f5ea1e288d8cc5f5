#include "trace/analyze/stats.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <list>
#include <set>

#include "base/random.h"
#include "support.h"

namespace mc::trace {
namespace {

// The definition, slowly: the C blocks that come first by (last request descending, position).
class SlowCache {
 public:
  explicit SlowCache(uint64_t capacity) : capacity_(capacity) {}
  uint64_t present(const std::vector<uint64_t>& ids) const {
    uint64_t h = 0;
    while (h < ids.size() && std::find(order_.begin(), order_.end(), ids[h]) != order_.end()) ++h;
    return h;
  }
  void touch(const std::vector<uint64_t>& ids) {
    for (const uint64_t id : ids) order_.remove(id);
    order_.insert(order_.begin(), ids.begin(), ids.end());
    while (order_.size() > capacity_) order_.pop_back();
  }

 private:
  uint64_t capacity_;
  std::list<uint64_t> order_;
};

// A random prefix tree: each request continues, forks or starts a path.
std::vector<TraceRequest> random_trace(uint64_t seed) {
  Random random(seed);
  std::vector<TraceRequest> out;
  uint64_t next = 1;
  for (int i = 0; i < 200; ++i) {
    std::vector<uint64_t> ids = {0};
    if (!out.empty() && random.chance(0.7)) {
      ids = out[random.below(out.size())].hash_ids;
      if (out.back().input_length % kBlockTokens != 0 && ids.size() > 1) ids.pop_back();
      ids.resize(1 + random.below(ids.size()));
    }
    for (uint64_t n = random.below(5); n > 0; --n) ids.push_back(next++);
    out.push_back(prompt(ids, random.chance(0.5) ? random.below(kBlockTokens) : 0));
  }
  return out;
}

TEST_CASE("stack distances give what a simulated LRU cache of each capacity gives") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    const auto records = random_trace(seed);
    const std::vector<uint64_t> capacities = {0, 1, 2, 3, 5, 8, 13, 21, 55, 144, 1000};
    const HitCurve curve = lru_curve(records, kBlockTokens, capacities);
    REQUIRE(curve.points.size() == capacities.size());
    for (size_t i = 0; i < capacities.size(); ++i) {
      CAPTURE(capacities[i]);
      SlowCache all(capacities[i]), full_only(capacities[i]);
      uint64_t blocks_hit = 0, tokens_hit = 0, full_hit = 0;
      for (const TraceRequest& r : records) {
        const uint64_t h = all.present(r.hash_ids);
        blocks_hit += h;
        tokens_hit += std::min(h * kBlockTokens, r.input_length);
        all.touch(r.hash_ids);
        auto full = r.hash_ids;
        full.resize(r.input_length / kBlockTokens);
        full_hit += full_only.present(full);
        full_only.touch(full);
      }
      CHECK(curve.points[i].hit_blocks == blocks_hit);
      CHECK(curve.points[i].hit_tokens == tokens_hit);
      CHECK(curve.points[i].hit_full_blocks == full_hit);
    }
    CHECK(curve.infinite.hit_blocks == curve.points.back().hit_blocks);
  }
}

TEST_CASE("the deepest block of a request is evicted before its prefix") {
  // Three blocks, room for two: the tail goes, so the repeat finds the first two.
  const HitCurve curve = lru_curve({prompt({1, 2, 3}), prompt({1, 2, 3})}, kBlockTokens, {2, 3});
  CHECK(curve.points[0].hit_blocks == 2);
  CHECK(curve.points[1].hit_blocks == 3);
}

TEST_CASE("a partial block hits only for an identical prompt, and counts its own tokens") {
  const HitCurve curve =
      lru_curve({prompt({1, 2}, 500), prompt({1, 2}, 500), prompt({1, 3}, 500)}, kBlockTokens, {});
  CHECK(curve.blocks == 6);
  CHECK(curve.infinite.hit_blocks == 3);
  CHECK(curve.infinite.hit_tokens == 512 + 12 + 512);
  CHECK(curve.full_blocks == 3);
  CHECK(curve.infinite.hit_full_blocks == 2);
}

TEST_CASE("a live cluster reuses full blocks only and computes at least one") {
  const std::vector<TraceRequest> records = {prompt({1, 2}, 500), prompt({1, 2}, 500),
                                             prompt({1, 3}),      prompt({1, 3}),
                                             prompt({1, 3, 4}),   prompt({1})};
  const auto p = predict_hits(records, kBlockTokens, {});
  REQUIRE(p);
  // Cold; block 1; block 1; block 1 of the two present; both; its only block must be computed.
  CHECK(p->cached == std::vector<uint64_t>{0, 512, 512, 512, 1024, 0});
  CHECK(p->hit_blocks == 5);
  CHECK(p->hit_tokens == 2560);
  CHECK(p->requests_with_hits == 4);
  CHECK(p->full_blocks == 1 + 1 + 2 + 2 + 3 + 1);
}

TEST_CASE("the pool of a cluster is the sum of its nodes' caches") {
  const auto records = random_trace(9);
  const auto pooled = predict_hits(records, kBlockTokens, {.node_blocks = 10, .nodes = 4});
  const auto one = predict_hits(records, kBlockTokens, {.node_blocks = 40});
  const auto quarter = predict_hits(records, kBlockTokens, {.node_blocks = 10});
  const auto all = predict_hits(records, kBlockTokens, {.nodes = 3});
  REQUIRE((pooled && one && quarter && all));
  CHECK(pooled->capacity_blocks == 40);
  CHECK(pooled->cached == one->cached);
  CHECK(quarter->hit_tokens < one->hit_tokens);
  CHECK(one->hit_tokens < all->hit_tokens);
  CHECK(all->capacity_blocks == kUnlimited);
  CHECK(predict_hits(records, kBlockTokens, {.node_blocks = 0})->hit_tokens == 0);
}

TEST_CASE("a cluster with smaller blocks than the trace also shares part of a last block") {
  const std::vector<TraceRequest> twice = {prompt({1, 2}, 200), prompt({1, 2}, 200)};  // 824 tokens
  CHECK(predict_hits(twice, kBlockTokens, {})->hit_tokens == 512);
  CHECK(predict_hits(twice, kBlockTokens, {.cluster_block_tokens = 256})->hit_tokens == 768);
  CHECK(predict_hits(twice, kBlockTokens, {.cluster_block_tokens = 16})->hit_tokens == 816);
  CHECK(!predict_hits(twice, kBlockTokens, {.cluster_block_tokens = 500}));
  CHECK(!predict_hits(twice, kBlockTokens, {.nodes = 0}));
}

TEST_CASE("an id under two parents is found, and so are gaps in the numbering") {
  Trace tree;
  tree.records = {prompt({0, 1}), prompt({0, 2})};
  CHECK(describe(tree).ids_many_parents == 0);
  CHECK(describe(tree).ids_dense);
  CHECK(describe(tree).roots == 2);
  CHECK(describe(tree).shared_by_all == 1);
  tree.records.push_back(prompt({0, 5, 1}));
  CHECK(describe(tree).ids_many_parents == 1);
  CHECK(!describe(tree).ids_dense);
}

TEST_CASE("the recorded trace has its published statistics") {
  const auto path = recorded_conversation();
  if (!path) return;
  const auto trace = read_trace(*path);
  REQUIRE(trace);
  const TraceStats s = describe(*trace);
  CHECK(s.requests == 12031);
  CHECK(s.span_s == doctest::Approx(3536.999));
  CHECK(s.stamps == 1180);
  CHECK(s.per_stamp_max == 28);
  CHECK(s.input_tokens == 144793823);
  CHECK(s.input.mean() == doctest::Approx(12035.06).epsilon(1e-6));
  CHECK(s.input.percentile(50) == 6909);
  CHECK(s.input.percentile(90) == 27367);
  CHECK(std::abs(s.input.percentile(99) - 85400) < 1);
  CHECK(s.input.max() == 126195);
  CHECK(s.output_tokens == 4122048);
  CHECK(s.output.percentile(50) == 350);
  CHECK(std::abs(s.output.percentile(99) - 1118.5) < 0.5);
  CHECK(s.output.max() == 2000);
  CHECK(s.blocks == 288500);
  CHECK(s.distinct_blocks == 182790);
  CHECK(static_cast<double>(s.blocks_seen_once) / 182790 == doctest::Approx(0.759).epsilon(0.001));
  CHECK(s.shared_by_all == 1);
  CHECK(s.roots == 7373);
  CHECK(s.ids_dense);
  CHECK(s.ids_many_parents == 0);
}

TEST_CASE("the recorded trace has its published hit rates") {
  const auto path = recorded_conversation();
  if (!path) return;
  const auto trace = read_trace(*path);
  REQUIRE(trace);
  const HitCurve curve = lru_curve(trace->records, kBlockTokens, {1953, 195312});
  CHECK(curve.infinite.hit_blocks == 105710);
  CHECK(curve.blocks == 288500);
  CHECK(curve.infinite.hit_tokens == 54098411);
  CHECK(curve.tokens == 144793823);
  CHECK(curve.block_rate(curve.infinite) == doctest::Approx(0.366412).epsilon(1e-6));
  CHECK(curve.token_rate(curve.infinite) == doctest::Approx(0.373624).epsilon(1e-6));
  CHECK(curve.full_block_rate(curve.infinite) == doctest::Approx(0.381900).epsilon(2e-6));
  CHECK(curve.points[0].hit_blocks < curve.points[1].hit_blocks);
}

}  // namespace
}  // namespace mc::trace
