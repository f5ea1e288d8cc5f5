#include "sched/pool/pool_index.h"

#include <doctest/doctest.h>

#include <map>
#include <numeric>

#include "base/random.h"

using namespace mc;
using namespace mc::sched;

namespace pool_index_test {

namespace {

std::vector<uint64_t> tags(size_t n, uint64_t seed = 1) {
  Random random(seed);
  std::vector<uint64_t> t(n);
  for (uint64_t& x : t) x = random.next();
  return t;
}

}  // namespace

TEST_CASE("the index says what was put last of each block") {
  PoolIndex index(1 << 20);
  std::map<uint64_t, PoolTier> truth;
  Random random(7);
  const auto all = tags(3000);
  for (int i = 0; i < 60000; ++i) {
    const uint64_t tag = all[random.next() % all.size()];
    const auto tier = static_cast<PoolTier>(random.next() % 3);
    index.put(tag, tier);
    truth[tag] = tier;
  }
  size_t there = 0;
  for (const auto& [tag, tier] : truth) {
    CHECK(index.tier(tag) == tier);
    there += tier != PoolTier::kNone;
  }
  CHECK(index.blocks() == there);
}

TEST_CASE("of a prompt it finds the runs, over gaps as far as a node holds") {
  PoolIndex index(1000);
  const auto prompt = tags(10);
  // M M D . M D D . M M
  const PoolTier tiers[] = {PoolTier::kMemory, PoolTier::kMemory, PoolTier::kDisk, PoolTier::kNone,
                            PoolTier::kMemory, PoolTier::kDisk,   PoolTier::kDisk, PoolTier::kNone,
                            PoolTier::kMemory, PoolTier::kMemory};
  for (size_t i = 0; i < prompt.size(); ++i) index.put(prompt[i], tiers[i]);

  const PoolMatch first = index.match(prompt, 0);
  CHECK(first.run(0, 10).memory == 2);
  CHECK(first.run(0, 10).disk == 1);
  CHECK(first.run(1, 10).blocks() == 2);
  CHECK(first.run(0, 2).blocks() == 2);
  CHECK(first.run(0, 2).disk == 0);
  CHECK(first.run(3, 10).blocks() == 0);
  CHECK(first.run(4, 10).blocks() == 0);  // no node holds block 3

  const PoolMatch second = index.match(prompt, 5);
  CHECK(second.run(3, 10).blocks() == 0);
  CHECK(second.run(4, 10).memory == 1);
  CHECK(second.run(4, 10).disk == 2);
  CHECK(second.run(8, 10).blocks() == 0);
  CHECK(index.match(prompt, 8).run(8, 10).memory == 2);
  CHECK(index.match(prompt, 8).run(9, 100).memory == 1);
  CHECK(index.match(prompt, 8).run(100, 200).blocks() == 0);
}

TEST_CASE("of a block it says which node has it, by a number") {
  PoolIndex index(1000);
  const auto prompt = tags(4);
  index.put(prompt[0], {PoolTier::kMemory, 1});
  index.put(prompt[1], {PoolTier::kDisk, 65'535});
  index.put(prompt[2], PoolTier::kDisk);
  CHECK(index.place(prompt[0]) == PoolPlace{PoolTier::kMemory, 1});
  CHECK(index.place(prompt[1]) == PoolPlace{PoolTier::kDisk, 65'535});
  CHECK(index.place(prompt[2]) == PoolPlace{PoolTier::kDisk, 0});
  CHECK(index.place(prompt[3]) == PoolPlace{});
  index.put(prompt[1], {PoolTier::kDisk, 2});  // it moved
  const PoolMatch m = index.match(prompt, 0);
  REQUIRE(m.size() == 3);
  CHECK(m.place(1) == PoolPlace{PoolTier::kDisk, 2});
  CHECK(index.blocks() == 3);
}

TEST_CASE("a full index takes no more and says so; what leaves makes room") {
  PoolIndex index(100);
  const auto all = tags(101);
  for (const uint64_t tag : all) index.put(tag, PoolTier::kMemory);
  CHECK(index.blocks() == 100);
  CHECK(index.refused() == 1);
  index.put(all[0], PoolTier::kDisk);  // one that it has
  CHECK(index.tier(all[0]) == PoolTier::kDisk);
  index.put(all[0], PoolTier::kNone);
  index.put(all[100], PoolTier::kMemory);
  CHECK(index.tier(all[100]) == PoolTier::kMemory);
  CHECK(index.refused() == 1);
}

TEST_CASE("a block takes 17 bytes at most, and an index is freed in parts") {
  PoolIndex index(1 << 20);
  for (const uint64_t tag : tags(300'000)) index.put(tag, PoolTier::kMemory);
  CHECK(index.blocks() == 300'000);
  CHECK(index.bytes() < 300'000 * 17);
  int steps = 1;
  while (index.release_some()) ++steps;
  CHECK(steps > 16);
  CHECK(index.blocks() == 0);
  CHECK(index.bytes() < 20'000);
}

}  // namespace pool_index_test
