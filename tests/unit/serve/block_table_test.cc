#include "serve/kvcache/block_table.h"

#include <doctest/doctest.h>

#include <map>

#include "base/random.h"

namespace mc::serve {

TEST_CASE("block table: equals a map, also if tags collide, wrap around or are equal") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    BlockTable table;
    std::map<BlockId, uint64_t> tags;  // by block
    const auto tag = [&] {             // many at the end of the table, and many the same
      return random.below(2) ? UINT64_MAX - random.below(6) : random.below(40);
    };
    for (int i = 0; i < 4000; ++i) {
      const auto block = static_cast<BlockId>(random.below(200));
      const auto at = tags.find(block);
      const auto is = [&](BlockId b) { return b == block; };
      const uint64_t of = at == tags.end() ? tag() : at->second;
      REQUIRE(table.find(of, is) == (at == tags.end() ? kNoBlock : block));
      if (at == tags.end()) {
        table.insert(of, block);
        tags.emplace(block, of);
      } else if (random.below(3) > 0) {
        table.erase(of, block);
        tags.erase(at);
      }
      REQUIRE(table.size() == tags.size());
    }
    for (const auto& [block, of] : tags) {
      const BlockId wanted = block;
      CHECK(table.find(of, [&](BlockId b) { return b == wanted; }) == wanted);
    }
  }
}

}  // namespace mc::serve
