#include "sched/time_sums.h"

#include <doctest/doctest.h>

#include <set>

#include "base/random.h"

namespace mc::sched {

TEST_CASE("time sums: as counted one by one, over many chunks that split and go") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    TimeSums sums;
    struct Entry {
      Time at;
      uint64_t id, tokens;
    };
    std::vector<Entry> all;
    for (uint64_t id = 1; id <= 6000; ++id) {
      const Time at{std::chrono::milliseconds(random.below(500))};
      all.push_back({at, id, random.below(1000)});
      sums.add(at, id, all.back().tokens);
      // Grows to some thousands, then to nothing and a little.
      for (uint64_t n = random.below(id < 4000 ? 2 : 5); n > 0 && !all.empty(); --n) {
        std::swap(all[random.below(all.size())], all.back());
        sums.remove(all.back().at, all.back().id);
        all.pop_back();
      }
      if (id % 20 != 0) continue;
      const Time until{std::chrono::milliseconds(random.below(520))};
      uint64_t requests = 0, tokens = 0;
      for (const Entry& e : all)
        if (e.at <= until) {
          ++requests;
          tokens += e.tokens;
        }
      const auto got = sums.until(until);
      REQUIRE(got.requests == requests);
      REQUIRE(got.tokens == tokens);
    }
  }
}

}  // namespace mc::sched
