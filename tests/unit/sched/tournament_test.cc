#include "sched/tournament.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "base/random.h"

namespace mc::sched {

TEST_CASE("tournament: the best, and the order of all, as of a sorted set") {
  for (const uint32_t entries : {1u, 2u, 7u, 64u, 100u}) {
    CAPTURE(entries);
    Random random(entries);
    using Key = std::pair<uint64_t, uint32_t>;
    Tournament<Key> tournament(entries);
    std::map<uint32_t, Key> keys;
    for (int turn = 0; turn < 2000; ++turn) {
      const auto i = static_cast<uint32_t>(random.below(entries));
      if (random.below(4) == 0) {
        tournament.erase(i);
        keys.erase(i);
      } else {
        keys[i] = {random.below(20), i};
        tournament.put(i, keys[i]);
      }
      std::set<Key> order;
      for (const auto& [at, key] : keys) order.insert(key);
      REQUIRE(tournament.has(i) == keys.contains(i));
      REQUIRE(tournament.empty() == order.empty());
      if (!order.empty()) REQUIRE(tournament.best() == order.begin()->second);
      if (turn % 10 != 0) continue;
      Tournament<Key>::Cursor cursor(tournament);
      for (const Key& key : order) {
        REQUIRE(cursor.peek() == key.second);
        cursor.advance();
      }
      CHECK(!cursor.peek());
    }
  }
}

}  // namespace mc::sched
