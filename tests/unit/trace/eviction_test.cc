#include "trace/analyze/eviction.h"

#include <doctest/doctest.h>

#include "base/random.h"
#include "support.h"
#include "trace/analyze/routing.h"

namespace mc::trace {
namespace {

// A prefix tree of sessions with repeats, so that every order has something to lose.
Numbered random_prompts(uint64_t seed) {
  Random random(seed);
  std::vector<TraceRequest> out;
  uint64_t next = 1;
  for (int i = 0; i < 400; ++i) {
    std::vector<uint64_t> ids = {0};
    if (!out.empty() && random.chance(0.7)) {
      const TraceRequest& old =
          out[out.size() - 1 - random.below(std::min<size_t>(out.size(), 40))];
      ids = old.hash_ids;
      if (old.input_length % kBlockTokens != 0 && ids.size() > 1) ids.pop_back();
      ids.resize(1 + random.below(ids.size()));
    }
    for (uint64_t n = 1 + random.below(6); n > 0; --n) ids.push_back(next++);
    out.push_back(prompt(ids, random.below(3) * 100));
  }
  return number_blocks(out, kBlockTokens);
}

TEST_CASE("no eviction order beats opt, at any size") {
  const std::vector<uint64_t> sizes = {0, 1, 2, 3, 5, 8, 21, 55, 144, 400, 100000};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const Numbered prompts = random_prompts(seed);
    const HitCurve lru = lru_curve(prompts, sizes);
    const auto opt = eviction_curve(prompts, "opt", sizes);
    REQUIRE(opt);
    for (size_t i = 0; i < sizes.size(); ++i) {
      CHECK(opt->points[i].hit_blocks >= lru.points[i].hit_blocks);
      CHECK(opt->points[i].hit_full_blocks >= lru.points[i].hit_full_blocks);
    }
    for (const std::string& order : kEvictionOrders) {
      CAPTURE(order);
      const auto curve = eviction_curve(prompts, order, sizes);
      REQUIRE(curve);
      for (size_t i = 0; i < sizes.size(); ++i) {
        CAPTURE(sizes[i]);
        CHECK(curve->points[i].hit_blocks <= opt->points[i].hit_blocks);
        CHECK(curve->points[i].hit_full_blocks <= opt->points[i].hit_full_blocks);
      }
      // With room for everything all orders are one.
      CHECK(curve->points.back().hit_blocks == lru.infinite.hit_blocks);
      CHECK(curve->points.back().hit_tokens == lru.infinite.hit_tokens);
      CHECK(curve->points.back().hit_full_blocks == lru.infinite.hit_full_blocks);
      CHECK(curve->points[0].hit_blocks == 0);
    }
  }
  CHECK(!eviction_curve(random_prompts(1), "mru", {1}));
}

uint64_t hits(const char* order, const std::vector<TraceRequest>& records, uint64_t capacity) {
  return eviction_curve(number_blocks(records, kBlockTokens), order, {capacity})
      ->points[0]
      .hit_blocks;
}

TEST_CASE("each order keeps what it should") {
  const TraceRequest a = prompt({1}), b = prompt({2}), c = prompt({3}), d = prompt({4});
  // Room for two. a is used twice, then b and c come: lfu drops b, fifo and lru drop a.
  CHECK(hits("lfu", {a, a, b, c, a}, 2) == 2);
  CHECK(hits("fifo", {a, a, b, c, a}, 2) == 1);
  CHECK(hits("sieve", {a, a, b, c, a}, 2) == 2);
  CHECK(hits("opt", {a, a, b, c, a}, 2) == 2);
  // lfu: of equals the least recently used goes.
  CHECK(hits("lfu", {a, b, c, b}, 2) == 1);
  CHECK(hits("lfu", {a, b, c, a}, 2) == 0);
  // opt does not admit what is needed later than all it holds.
  CHECK(hits("opt", {a, b, c, d, a, b}, 2) == 2);
  // s3-fifo: a scan of new blocks passes through the tenth and leaves the main queue alone.
  std::vector<TraceRequest> scan = {a, a, a};
  for (uint64_t i = 10; i < 60; ++i) scan.push_back(prompt({i}));
  scan.push_back(a);
  CHECK(hits("s3-fifo", scan, 10) == 3);
  CHECK(hits("fifo", scan, 10) == 2);
  // s3-fifo remembers as many as the main queue holds, of those that are not back: with room for
  // four that is three, and 5, the first to go, is still known when 3 has been and come back.
  std::vector<TraceRequest> back;
  for (const uint64_t id : std::vector<uint64_t>{5, 3, 4, 9, 2, 8, 3, 5, 1, 2, 2, 6, 5})
    back.push_back(prompt({id}));
  CHECK(hits("s3-fifo", back, 4) == 2);
}

TEST_CASE("a prompt longer than the cache leaves its beginning there") {
  const std::vector<TraceRequest> twice = {prompt({1, 2, 3, 4}), prompt({1, 2, 3, 4})};
  for (const std::string& order : kEvictionOrders) {
    CAPTURE(order);
    CHECK(hits(order.c_str(), twice, 2) == 2);
  }
}

TEST_CASE(
    "the longest match alone sends every request to one node; without trivial ones it does not") {
  std::vector<TraceRequest> records;
  for (int round = 0; round < 3; ++round)
    for (uint64_t session = 0; session < 40; ++session)
      records.push_back(prompt({0, 100 + session, 200 + session}));
  const Numbered prompts = number_blocks(records, kBlockTokens);
  const auto study =
      routing_study(prompts, {.nodes = 4, .node_blocks = 60, .trivial_blocks = 1, .seed = 1});
  REQUIRE(study);
  for (const RoutingHits& r : *study) {
    CAPTURE(r.route);
    const uint64_t all = 119 + 2 * 80;  // the system prompt, and two rounds of two blocks
    if (r.route == "longest") {
      CHECK(r.black_hole);
      CHECK(r.nodes_used == 1);
      CHECK(r.hits.hit_blocks < 160);
    } else {
      CHECK(!r.black_hole);
      CHECK(r.hits.hit_blocks <= all);
    }
    if (r.route == "nontrivial" || r.route == "sticky") CHECK(r.hits.hit_blocks == all - 3);
    if (r.route == "pool") CHECK(r.hits.hit_blocks == all);
    if (r.route == "nontrivial") CHECK(r.requests_max_share == doctest::Approx(0.25));
  }
  CHECK(!routing_study(prompts, {.nodes = 0}));
  CHECK(!routing_study(prompts, {.nodes = kRouteNodesMax + 1}));
}

TEST_CASE("the recorded trace falls into the black hole, and out of it without trivial matches") {
  const auto path = recorded_conversation();
  if (!path) return;
  const auto trace = read_trace(*path, {.limit = 3000});
  REQUIRE(trace);
  const Numbered prompts = number_blocks(trace->records, kBlockTokens);
  const auto study = routing_study(
      prompts, {.nodes = 10, .node_blocks = 3'000'000 / 512, .trivial_blocks = 1, .seed = 1});
  REQUIRE(study);
  CHECK((*study)[1].black_hole);
  CHECK((*study)[1].requests_max_share == 1);
  CHECK(!(*study)[2].black_hole);
  CHECK((*study)[2].hits.hit_blocks >= (*study)[4].hits.hit_blocks * 95 / 100);
}

}  // namespace
}  // namespace mc::trace
