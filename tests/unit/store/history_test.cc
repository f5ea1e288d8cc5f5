// Tests of the history checker: it accepts legal histories and rejects the others.
#include <doctest/doctest.h>

#include "base/random.h"
#include "tests/history/check.h"

using namespace mc;
using namespace mc::history;

namespace {
Op put(uint64_t value, int64_t start, int64_t end, Fate fate = Fate::kDone) {
  return {Kind::kPut, fate, "k", value, start, end};
}
Op get(uint64_t value, int64_t start, int64_t end) {
  return {Kind::kGet, Fate::kDone, "k", value, start, end};
}
Op removal(int64_t start, int64_t end, Fate fate = Fate::kDone) {
  return {Kind::kRemove, fate, "k", 0, start, end};
}
}  // namespace

TEST_CASE("legal histories are accepted") {
  CHECK(check({put(1, 0, 5), get(1, 6, 7)}).empty());
  CHECK(check({put(1, 0, 5), get(1, 1, 2), get(1, 8, 9)}).empty());
  // A removal at the same time may come first.
  CHECK(check({put(1, 0, 5), removal(4, 8), get(1, 9, 10)}).empty());
  CHECK(check({put(1, 0, 5), removal(6, 12), get(1, 9, 10)}).empty());
  CHECK(check({put(1, 0, 5), removal(6, 7, Fate::kMaybe), get(1, 9, 10)}).empty());
  // A put without an answer takes effect at any time, once.
  CHECK(check({put(1, 0, 5, Fate::kMaybe), removal(6, 7), get(1, 9, 10)}).empty());
  CHECK(check({put(1, 0, 1), put(2, 3, 4), get(2, 5, 6)}).empty());
}

TEST_CASE("illegal histories are rejected") {
  CHECK(check({get(1, 6, 7)}).size() == 1);
  CHECK(check({put(1, 8, 9), get(1, 6, 7)}).size() == 1);
  CHECK(check({put(1, 0, 5), removal(6, 7), get(1, 8, 9)}).size() == 1);
  CHECK(check({put(1, 0, 5), put(2, 6, 7), get(1, 8, 9)}).size() == 1);
  CHECK(check({put(1, 0, 5, Fate::kMaybe), get(1, 6, 7), removal(8, 9), get(1, 10, 11)}).size() ==
        1);
  // Seen, then another, then again.
  CHECK(check({put(1, 0, 90, Fate::kMaybe), put(2, 0, 90, Fate::kMaybe), get(1, 1, 2), get(2, 3, 4),
               get(1, 5, 6)})
            .size() == 1);
  // Its own sights are no proof against it, however many there are.
  CHECK(
      check({put(1, 0, 1), get(1, 2, 3), get(1, 4, 5), removal(6, 7), get(1, 8, 9), get(1, 10, 11)})
          .size() == 2);
}

// A register whose content hides at random, used by clients whose operations overlap.
TEST_CASE(
    "histories of a store that keeps its promises are accepted, with one broken they are not") {
  size_t found = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    for (const bool broken : {false, true}) {
      CAPTURE(seed);
      Random random(seed);
      std::vector<Op> ops;
      uint64_t now = 0, content = 0, before = 0, values = 0;
      for (int i = 0; i < 400; ++i) {
        const auto at = static_cast<int64_t>(now += 1 + random.below(4));
        const int64_t start = at - static_cast<int64_t>(random.below(12));
        const int64_t end = at + static_cast<int64_t>(random.below(12));
        const bool unknown = random.chance(0.1);
        if (random.chance(0.2)) {
          if (content == 0) {
            content = ++values;
            ops.push_back(put(content, start, end, unknown ? Fate::kMaybe : Fate::kDone));
          }
        } else if (random.chance(0.1)) {
          if (content != 0) before = content;
          content = 0;
          ops.push_back(removal(start, end, unknown ? Fate::kMaybe : Fate::kDone));
        } else {
          const bool stale = broken && before != 0 && random.chance(0.1);
          const uint64_t seen = stale ? before : content;
          if (seen != 0 && random.chance(0.8)) ops.push_back(get(seen, start, end));
        }
      }
      if (!broken) CHECK(check(ops).empty());
      found += broken && !check(ops).empty() ? 1 : 0;
    }
  }
  CHECK(found >= 35);
}
