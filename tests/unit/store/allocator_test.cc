#include "store/metadata/allocator.h"

#include <doctest/doctest.h>

#include <map>

#include "base/random.h"

namespace mc::store {
namespace {

constexpr uint64_t kUnit = 4096;

TEST_CASE("a value of no bytes takes one page, and one byte more than a page takes two") {
  Allocator space(10 * kUnit, kUnit);
  CHECK(space.offset(space.allocate(0, 1)) == 0);
  CHECK(space.used() == kUnit);
  CHECK(space.offset(space.allocate(kUnit + 1, 1)) == kUnit);
  CHECK(space.used() == 3 * kUnit);
}

TEST_CASE("a hole that fits is taken before larger ones are cut") {
  Allocator space(100 * kUnit, kUnit);
  const Id a = space.allocate(10 * kUnit, 1);
  space.allocate(kUnit, 1);
  const Id c = space.allocate(5 * kUnit, 1);
  space.allocate(kUnit, 1);
  const uint64_t hole = space.offset(c);
  space.free(a);
  space.free(c);
  CHECK(space.offset(space.allocate(5 * kUnit, 1)) == hole);
}

TEST_CASE("neighbours coalesce, whichever is freed last") {
  for (int last = 0; last < 3; ++last) {
    Allocator space(3 * kUnit, kUnit);
    const Id at[3] = {space.allocate(1, 1), space.allocate(1, 1), space.allocate(1, 1)};
    CHECK(space.allocate(1, 1) == kNoId);
    for (int i = 0; i < 3; ++i)
      if (i != last) space.free(at[i]);
    space.free(at[last]);
    CHECK(space.largest_free() == 3 * kUnit);
    CHECK(space.holes() == 1);
  }
}

TEST_CASE("a request larger than everything, or than any integer, is refused") {
  Allocator space(10 * kUnit, kUnit);
  CHECK(space.allocate(11 * kUnit, 1) == kNoId);
  CHECK(space.allocate(UINT64_MAX, 1, 16) == kNoId);
  CHECK(space.used() == 0);
}

TEST_CASE("a value that no single hole takes is given several, and all come back together") {
  Allocator space(12 * kUnit, kUnit);
  Id at[6];
  for (Id& id : at) id = space.allocate(2 * kUnit, 1);
  for (const int i : {0, 2, 4}) space.free(at[i]);
  CHECK(space.fragmentation() == doctest::Approx(2.0 / 3));
  CHECK(space.allocate(5 * kUnit, 7) == kNoId);
  CHECK(space.allocate(5 * kUnit, 7, 2) == kNoId);
  CHECK(space.used() == 6 * kUnit);  // nothing is left of what failed
  const Id head = space.allocate(5 * kUnit, 7, 3);
  REQUIRE(head != kNoId);
  uint64_t bytes = 0;
  size_t pieces = 0;
  for (Id id = head; id != kNoId; id = space.next(id), ++pieces) {
    CHECK(space.owner(id) == 7);
    bytes += space.bytes(id);
  }
  CHECK(pieces == 3);
  CHECK(bytes == 5 * kUnit);
  space.free(head);
  CHECK(space.used() == 6 * kUnit);
}

TEST_CASE("a reserved range must be free, aligned and inside") {
  Allocator space(10 * kUnit, kUnit);
  CHECK(space.reserve(2 * kUnit, 2 * kUnit, 1));
  CHECK(space.reserve(3 * kUnit, 1, 1).error().code == Code::kExists);
  CHECK(space.reserve(kUnit, 2 * kUnit, 1).error().code == Code::kExists);
  CHECK(space.reserve(17, 1, 1).error().code == Code::kInvalid);
  CHECK(space.reserve(9 * kUnit, 2 * kUnit, 1).error().code == Code::kInvalid);
  CHECK(space.reserve(UINT64_MAX - kUnit + 1, 1, 1).error().code == Code::kInvalid);
  CHECK(space.reserve(kUnit, UINT64_MAX, 1).error().code == Code::kInvalid);
  CHECK(space.reserve(0, 2 * kUnit, 1));
  CHECK(space.used() == 4 * kUnit);
  CHECK(space.reserve(9 * kUnit, kUnit, 1));
  space.allocate(1, 1);
  CHECK(space.reserve(8 * kUnit, kUnit, 1).error().code == Code::kInvalid);  // too late
}

TEST_CASE("ranges reserved in any order leave exactly the holes between them") {
  Random random(3);
  Allocator space(1000 * kUnit, kUnit);
  std::vector<bool> taken(1000, false);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t first = random.below(1000), n = 1 + random.below(5);
    bool fits = first + n <= 1000;
    for (uint64_t p = first; fits && p < first + n; ++p) fits = !taken[p];
    CHECK(space.reserve(first * kUnit, n * kUnit, 1).has_value() == fits);
    for (uint64_t p = first; fits && p < first + n; ++p) taken[p] = true;
  }
  space.seal();
  const auto left = static_cast<uint64_t>(std::count(taken.begin(), taken.end(), false));
  CHECK(space.used() == (1000 - left) * kUnit);
  for (uint64_t i = 0; i < left; ++i) REQUIRE(space.allocate(1, 2) != kNoId);
  CHECK(space.allocate(1, 2) == kNoId);
}

struct Model {  // every page, and who has it
  std::vector<Id> pages;
  std::map<Id, std::vector<std::pair<uint64_t, uint64_t>>> given;  // pieces: first page, pages
  uint64_t used = 0;

  explicit Model(size_t n) : pages(n, kNoId) {}
  bool take(const Allocator& space, Id head) {
    bool free_before = true;
    for (Id id = head; id != kNoId; id = space.next(id)) {
      const uint64_t first = space.offset(id) / kUnit, n = space.bytes(id) / kUnit;
      for (uint64_t p = first; p < first + n; ++p) {
        free_before = free_before && pages[p] == kNoId;
        pages[p] = head;
      }
      given[head].push_back({first, n});
      used += n;
    }
    return free_before;
  }
  void give(Id head) {
    for (const auto& [first, n] : given[head]) {
      for (uint64_t p = first; p < first + n; ++p) pages[p] = kNoId;
      used -= n;
    }
    given.erase(head);
  }
  uint64_t largest_hole() const {
    uint64_t best = 0, run = 0;
    for (const Id p : pages) best = std::max(best, run = p == kNoId ? run + 1 : 0);
    return best;
  }
};

TEST_CASE("over 200000 random operations no ranges overlap and every byte is accounted for") {
  for (const size_t pieces : {size_t{1}, size_t{4}}) {
    Random random(11);
    const uint64_t pages = 512;
    Allocator space(pages * kUnit, kUnit);
    Model model(pages);
    uint64_t refused_though_fits = 0, refused = 0;
    for (int step = 0; step < 100000; ++step) {
      if (model.given.empty() || random.chance(0.5)) {
        const uint64_t n = 1 + random.below(random.chance(0.1) ? 100 : 12);
        const Id head = space.allocate(n * kUnit - random.below(kUnit), 9, pieces);
        if (head == kNoId) {
          ++refused;
          if (model.largest_hole() >= n) ++refused_though_fits;
          continue;
        }
        if (!model.take(space, head)) FAIL("ranges overlap");
      } else {
        auto it = model.given.lower_bound(static_cast<Id>(random.below(pages)));
        if (it == model.given.end()) it = model.given.begin();
        const Id head = it->first;
        model.give(head);
        space.free(head);
      }
      if (space.used() != model.used * kUnit) REQUIRE(space.used() == model.used * kUnit);
      if (step % 1000 == 0) CHECK(space.largest_free() <= model.largest_hole() * kUnit);
    }
    CHECK(refused > 100);
    CHECK(refused_though_fits * 100 <= refused);  // bins are looked into, not through
    while (!model.given.empty()) {
      const Id head = model.given.begin()->first;
      model.give(head);
      space.free(head);
    }
    CHECK(space.used() == 0);
    CHECK(space.largest_free() == pages * kUnit);
    CHECK(space.holes() == 1);
  }
}

TEST_CASE("an empty segment of a terabyte takes kilobytes") {
  const Allocator space(uint64_t{1} << 40, kUnit);
  CHECK(space.memory() < 8192);
}

}  // namespace
}  // namespace mc::store
