#include "store/allocator.h"

#include <doctest/doctest.h>

#include <map>

#include "base/random.h"

namespace mc::store {
namespace {

constexpr uint64_t kUnit = 4096;

TEST_CASE("a value of no bytes takes one page, and one byte more than a page takes two") {
  Allocator space(10 * kUnit, kUnit);
  CHECK(space.allocate(0) == 0);
  CHECK(space.used() == kUnit);
  CHECK(space.allocate(kUnit + 1) == kUnit);
  CHECK(space.used() == 3 * kUnit);
}

TEST_CASE("the smallest hole that fits is taken") {
  Allocator space(100 * kUnit, kUnit);
  const auto a = space.allocate(10 * kUnit), b = space.allocate(kUnit);
  const auto c = space.allocate(5 * kUnit), d = space.allocate(kUnit);
  REQUIRE((a && b && c && d));
  space.free(*a);
  space.free(*c);
  CHECK(space.allocate(4 * kUnit) == *c);
}

TEST_CASE("neighbours coalesce, whichever is freed last") {
  for (int last = 0; last < 3; ++last) {
    Allocator space(3 * kUnit, kUnit);
    uint64_t at[3] = {*space.allocate(1), *space.allocate(1), *space.allocate(1)};
    CHECK_FALSE(space.allocate(1));
    for (int i = 0; i < 3; ++i)
      if (i != last) space.free(at[i]);
    space.free(at[last]);
    CHECK(space.largest_free() == 3 * kUnit);
  }
}

TEST_CASE("a request larger than everything, or than any integer, is refused") {
  Allocator space(10 * kUnit, kUnit);
  CHECK_FALSE(space.allocate(11 * kUnit));
  CHECK_FALSE(space.allocate(UINT64_MAX));
}

TEST_CASE("a reserved range must be free, aligned and inside") {
  Allocator space(10 * kUnit, kUnit);
  CHECK(space.reserve(2 * kUnit, 2 * kUnit));
  CHECK(space.reserve(3 * kUnit, 1).error().code == Code::kExists);
  CHECK(space.reserve(kUnit, 2 * kUnit).error().code == Code::kExists);
  CHECK(space.reserve(17, 1).error().code == Code::kInvalid);
  CHECK(space.reserve(9 * kUnit, 2 * kUnit).error().code == Code::kInvalid);
  CHECK(space.reserve(UINT64_MAX - kUnit + 1, 1).error().code == Code::kInvalid);
  CHECK(space.reserve(kUnit, UINT64_MAX).error().code == Code::kInvalid);
  CHECK(space.reserve(0, 2 * kUnit));
  CHECK(space.used() == 4 * kUnit);
}

TEST_CASE("over 200000 random operations no ranges overlap and every byte is accounted for") {
  const uint64_t seed = 11;
  CAPTURE(seed);
  Random random(seed);
  const uint64_t pages = 512;
  Allocator space(pages * kUnit, kUnit);
  std::map<uint64_t, uint64_t> model;  // first page: pages
  std::vector<bool> taken(pages, false);
  uint64_t used = 0;
  const auto largest_hole = [&] {
    uint64_t best = 0, run = 0;
    for (const bool t : taken) best = std::max(best, run = t ? 0 : run + 1);
    return best;
  };
  for (int step = 0; step < 200000; ++step) {
    if (model.empty() || random.chance(0.5)) {
      const uint64_t n = 1 + random.below(random.chance(0.1) ? 100 : 12);
      const auto at = space.allocate(n * kUnit - random.below(kUnit));
      if (!at) {
        if (step % 100 == 0) CHECK(largest_hole() < n);
        continue;
      }
      const uint64_t first = *at / kUnit;
      for (uint64_t p = first; p < first + n; ++p) {
        if (taken[p]) REQUIRE_FALSE(taken[p]);
        taken[p] = true;
      }
      model[first] = n;
      used += n;
    } else {
      auto it = model.lower_bound(random.below(pages));
      if (it == model.end()) it = model.begin();
      space.free(it->first * kUnit);
      for (uint64_t p = it->first; p < it->first + it->second; ++p) taken[p] = false;
      used -= it->second;
      model.erase(it);
    }
    if (space.used() != used * kUnit) REQUIRE(space.used() == used * kUnit);
    if (step % 1000 == 0) CHECK(space.largest_free() == largest_hole() * kUnit);
  }
  while (!model.empty()) {
    space.free(model.begin()->first * kUnit);
    model.erase(model.begin());
  }
  CHECK(space.used() == 0);
  CHECK(space.largest_free() == pages * kUnit);
}

}  // namespace
}  // namespace mc::store
