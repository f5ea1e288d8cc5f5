#include "sched/index/buckets.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/random.h"

namespace mc::sched {

TEST_CASE("index buckets: no insert moves more than the keys of one bucket") {
  IndexCells cells;
  IndexBuckets buckets;
  uint64_t most = 0;
  size_t grew = 0;  // inserts during which the table was growing
  for (uint64_t i = 0; i < 200'000; ++i) {
    const uint64_t before = buckets.moved();
    buckets.insert(cells, cells.take(mix64(i), IndexCells::kNone));
    most = std::max(most, buckets.moved() - before);
    grew += buckets.moved() > before;
  }
  CHECK(most <= 40);  // ten in the mean; 40 is not seen in a million by chance
  CHECK(grew > 50'000);
  // Each was moved as often as a table that grows by a sixth has to, and not more.
  CHECK(buckets.moved() < 8 * 200'000);
}

TEST_CASE("index buckets: what grows ahead of need leaves inserts nothing to move") {
  IndexCells cells;
  IndexBuckets buckets;
  uint64_t ahead = 0;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const uint64_t before = buckets.moved();
    buckets.insert(cells, cells.take(mix64(i), IndexCells::kNone));
    REQUIRE(buckets.moved() == before);
    if (i % 4 != 0) continue;
    buckets.grow_ahead(cells, 12);
    CHECK(buckets.moved() - before <= 12 * 20);
    ahead = buckets.moved();
  }
  CHECK(ahead > 100'000);
  CHECK(buckets.bytes() < 8 * 100'000);
}

TEST_CASE("index buckets: every key is found, and no other, at each step of a growing table") {
  IndexCells cells;
  IndexBuckets buckets;
  Random random(3);
  struct Key {
    uint64_t tag;
    IndexCells::At at;
  };
  std::vector<Key> keys;
  uint64_t next = 1;
  const auto look = [&](size_t i) { return buckets.find(cells, keys[i].tag) == keys[i].at; };
  for (int step = 0; step < 60'000; ++step) {
    if (keys.empty() || random.chance(step < 40'000 ? 0.75 : 0.3)) {
      const uint64_t tag = mix64(next++);
      const auto at = cells.take(tag, IndexCells::kNone);
      cells[at].count = 1;
      buckets.insert(cells, at);
      keys.push_back({tag, at});
    } else {
      const size_t i = random.below(keys.size());
      buckets.erase(keys[i].tag, keys[i].at);
      cells.free(keys[i].at);
      keys[i] = keys.back();
      keys.pop_back();
    }
    if (random.chance(0.01)) buckets.grow_ahead(cells, random.below(50));
    if (!keys.empty()) REQUIRE(look(random.below(keys.size())));
    REQUIRE(buckets.find(cells, mix64(next + random.below(1000))) == IndexCells::kNone);
    if (step % 1000 == 0)
      for (size_t i = 0; i < keys.size(); ++i) REQUIRE(look(i));
  }
  for (const Key& key : keys) {
    buckets.erase(key.tag, key.at);
    REQUIRE(buckets.find(cells, key.tag) == IndexCells::kNone);
  }
}

}  // namespace mc::sched
