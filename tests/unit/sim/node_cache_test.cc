#include "sim/cluster/node_cache.h"

#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "base/random.h"
#include "sim/cluster/replication.h"

using namespace mc;
using namespace mc::sim;
using trace::CacheClass;

namespace {

std::vector<BlockHash> prompt(const std::vector<uint64_t>& ids) {
  std::vector<BlockHash> out;
  for (const uint64_t id : ids) {
    BlockHash h;
    std::memcpy(h.bytes.data(), &id, sizeof id);
    out.push_back(h);
  }
  return out;
}

NodeCacheOptions options(uint64_t vram, uint64_t dram, uint64_t ssd, const char* rule) {
  NodeCacheOptions o;
  o.vram = vram;
  o.dram = dram;
  o.ssd = ssd;
  o.block_tokens = 16;
  o.prompt_max = 16;
  o.rule = rule;
  return o;
}

// One more token than the blocks, so that all of them can be reused.
NodeCache::Found use(NodeCache& cache, const std::vector<uint64_t>& ids,
                     CacheClass of = CacheClass::kNormal) {
  const auto hashes = prompt(ids);
  const uint64_t tokens = ids.size() * 16 + 1;
  const auto found = cache.look(hashes, tokens);
  cache.end(cache.begin(hashes, tokens, Time{}), hashes, of);
  return found;
}

}  // namespace

TEST_CASE("blocks evicted from DRAM are found on the SSD, and return to DRAM") {
  NodeCache cache(options(0, 5, 4, "lru"), 1);
  use(cache, {1, 2});
  use(cache, {3, 4});  // room for three blocks of each prompt: the last token needs another
  use(cache, {5, 6});
  const auto found = use(cache, {1, 2});
  CHECK(found.ssd == 2);
  CHECK(found.dram == 0);
  CHECK(use(cache, {1, 2}).dram == 2);
}

TEST_CASE("the last used blocks are in VRAM too") {
  NodeCache cache(options(2, 20, 0, "lru"), 1);
  use(cache, {1, 2});
  CHECK(use(cache, {1, 2}).vram == 2);
  use(cache, {3, 4});
  const auto found = use(cache, {1, 2});
  CHECK(found.vram == 0);
  CHECK(found.dram == 2);
}

TEST_CASE("ephemeral prompts leave no blocks, but reuse cached ones") {
  NodeCache cache(options(0, 20, 0, "filter"), 1);
  use(cache, {1, 2});
  CHECK(use(cache, {1, 2, 3}, CacheClass::kEphemeral).dram == 2);
  CHECK(use(cache, {1, 2, 3}).dram == 2);
  CHECK(use(cache, {1, 2, 3}).dram == 3);
  NodeCache blind(options(0, 20, 0, "lru"), 1);
  use(blind, {1, 2, 3}, CacheClass::kEphemeral);
  CHECK(use(blind, {1, 2, 3}).dram == 3);
}

TEST_CASE("semantic: the SSD keeps contexts only") {
  NodeCache cache(options(0, 6, 10, "semantic"), 1);
  use(cache, {1, 2}, CacheClass::kContext);
  use(cache, {3, 4});
  for (uint64_t i = 10; i < 40; i += 2) use(cache, {i, i + 1});
  CHECK(use(cache, {3, 4}).blocks() == 0);
  CHECK(use(cache, {1, 2}).ssd == 2);
}

TEST_CASE("tiered: the SSD keeps all but ephemeral blocks, and evicts contexts last") {
  NodeCache cache(options(0, 6, 10, "tiered"), 1);
  use(cache, {1, 2}, CacheClass::kContext);
  use(cache, {3, 4});
  use(cache, {5, 6}, CacheClass::kEphemeral);
  for (uint64_t i = 10; i < 18; i += 2) use(cache, {i, i + 1});
  CHECK(use(cache, {5, 6}).blocks() == 0);
  CHECK(use(cache, {3, 4}).ssd == 2);
  for (uint64_t i = 20; i < 60; i += 2) use(cache, {i, i + 1});
  CHECK(use(cache, {3, 4}).blocks() == 0);
  CHECK(use(cache, {1, 2}).ssd == 2);
}

TEST_CASE("changes add up to the cached blocks at any time, and no tier overflows") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const uint64_t ssd = random.below(30);
    NodeCache cache(options(random.below(8), 20, ssd, kCacheRules[random.below(4)].c_str()), seed);
    std::set<uint64_t> known;
    for (int i = 0; i < 400; ++i) {
      std::vector<uint64_t> ids;
      const uint64_t root = random.below(12) * 100;
      for (uint64_t k = 0; k < 1 + random.below(8); ++k) ids.push_back(root + k);
      use(cache, ids, static_cast<CacheClass>(random.below(3)));
      for (const auto& c : cache.changes())
        if (c.stored)
          known.insert(c.tag);
        else
          known.erase(c.tag);
      const auto tags = cache.tags();
      CHECK(std::set<uint64_t>(tags.begin(), tags.end()) == known);
      CHECK(tags.size() == known.size());
      CHECK(cache.dram_used() <= 20);
      CHECK(cache.ssd_used() <= ssd);
      if (i % 100 == 99) {
        cache.lose_memory();
        const auto left = cache.tags();
        known = {left.begin(), left.end()};
        CHECK(cache.dram_used() == 0);
        CHECK(known.size() == cache.ssd_used());
      }
    }
  }
}

TEST_CASE("what is held stays, and what came into its room is there for others") {
  NodeCache cache(options(0, 10, 0, "lru"), 1);
  use(cache, {1, 2, 3});
  const auto hashes = prompt({1, 2, 3, 4, 5});
  const auto here = [&] { return cache.look(hashes, 5 * 16 + 1).blocks(); };
  CacheHold hold;
  hold.take(&cache, hashes, 5 * 16 + 1, 5, Time{});
  use(cache, {11, 12, 13, 14});  // five blocks: all others
  use(cache, {21, 22, 23, 24});
  CHECK(here() == 3);
  hold.came(5, CacheClass::kNormal);
  CHECK(here() == 5);
  hold.drop();
  CHECK(here() == 5);
  use(cache, {31, 32, 33, 34, 35, 36, 37, 38});
  CHECK(here() < 5);

  // There is no room for all that comes; what is here stays all the same.
  use(cache, {1, 2, 3});
  CacheHold other;
  other.take(&cache, prompt({41, 42, 43, 44, 45, 46}), 6 * 16 + 1, 6, Time{});
  hold.take(&cache, hashes, 5 * 16 + 1, 5, Time{});
  hold.came(5, CacheClass::kNormal);
  CHECK(here() == 4);
  other.drop();

  // What was held in memory that is lost is no part of what is held in the new one.
  cache.lose_memory();
  use(cache, {1, 2, 3});
  CacheHold later;
  later.take(&cache, hashes, 5 * 16 + 1, 0, Time{});
  hold.drop();
  use(cache, {51, 52, 53, 54, 55, 56});
  use(cache, {61, 62, 63, 64, 65, 66});
  CHECK(here() == 3);
}

TEST_CASE("copies are counted by sample, and the hottest block ranks first") {
  Copies copies;
  copies.add(std::vector<uint64_t>{1, 2});
  copies.add(std::vector<uint64_t>{1});
  copies.end_sample();
  copies.add(std::vector<uint64_t>{1, 2, 3});
  copies.add(std::vector<uint64_t>{1, 2});
  copies.add(std::vector<uint64_t>{2});
  copies.end_sample();
  CHECK(copies.series(1) == std::vector<uint32_t>{1, 3});  // as often as 1; the larger tag first
  CHECK(copies.series(2) == std::vector<uint32_t>{2, 2});
  CHECK(copies.series(3) == std::vector<uint32_t>{0, 1});
  CHECK(copies.series(4) == std::vector<uint32_t>{0, 0});
}
