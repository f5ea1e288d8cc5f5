#include "sched/prefix_index.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "base/random.h"

using namespace mc;
using namespace mc::sched;
using namespace std::chrono_literals;

namespace prefix_index_test {

namespace {
const Time t0{};
using Lengths = std::vector<uint32_t>;
}  // namespace

TEST_CASE("match counts blocks from the first on, for every node in one walk") {
  PrefixIndex index;
  for (const uint64_t tag : {1u, 2u, 3u}) index.add(0, tag);
  for (const uint64_t tag : {1u, 2u}) index.add(1, tag);
  for (const uint64_t tag : {2u, 3u, 4u})
    index.add(2, tag);  // the first is missing: nothing counts
  const std::vector<uint64_t> prompt{1, 2, 3, 4};
  CHECK(index.match(prompt, 4) == Lengths{3, 2, 0, 0});
  CHECK(index.match({}, 2) == Lengths{0, 0});
  CHECK(index.match(prompt, 1) == Lengths{3});
  index.remove(0, 2);
  CHECK(index.match(prompt, 3) == Lengths{1, 2, 0});
  CHECK(index.blocks() == 4);
}

TEST_CASE("a block may have a thousand holders and lose them again") {
  PrefixIndex index;
  const std::vector<uint64_t> prompt{7};
  for (PrefixIndex::Slot s = 0; s < 1000; ++s) index.add(s, 7);
  for (PrefixIndex::Slot s = 0; s < 1000; ++s) index.add(s, 7);  // twice is once
  CHECK(index.match(prompt, 1000) == Lengths(1000, 1));
  for (PrefixIndex::Slot s = 0; s < 999; ++s) index.remove(s, 7);
  auto lengths = index.match(prompt, 1000);
  CHECK(lengths[999] == 1);
  CHECK(lengths[0] == 0);
  index.remove(999, 7);
  CHECK(index.blocks() == 0);
}

TEST_CASE("the table agrees with a map of sets through a hundred thousand changes") {
  Random random(1);
  PrefixIndex index;
  std::map<uint64_t, std::set<PrefixIndex::Slot>> truth;
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t tag = random.below(3000);
    const auto slot = static_cast<PrefixIndex::Slot>(random.below(12));
    if (random.chance(0.55)) {
      index.add(slot, tag);
      truth[tag].insert(slot);
    } else {
      index.remove(slot, tag);
      truth[tag].erase(slot);
      if (truth[tag].empty()) truth.erase(tag);
    }
    if (i == 50'000) {
      index.forget(3);
      for (auto it = truth.begin(); it != truth.end();) {
        it->second.erase(3);
        it = it->second.empty() ? truth.erase(it) : std::next(it);
      }
    }
  }
  CHECK(index.blocks() == truth.size());
  for (uint64_t tag = 0; tag < 3000; ++tag) {
    const std::vector<uint64_t> prompt{tag};
    const auto lengths = index.match(prompt, 12);
    for (PrefixIndex::Slot s = 0; s < 12; ++s)
      REQUIRE(lengths[s] == (truth.contains(tag) && truth[tag].contains(s) ? 1 : 0));
  }
}

TEST_CASE("over its bound the index takes nothing new and keeps what it has") {
  PrefixIndex index(100);
  for (uint64_t tag = 0; tag < 150; ++tag) index.add(0, tag);
  CHECK(index.blocks() == 100);
  CHECK(index.refused() == 50);
  index.add(1, 5);  // another holder needs no entry
  const std::vector<uint64_t> five{5};
  CHECK(index.match(five, 2) == Lengths{1, 1});
  index.remove(0, 0);
  index.add(0, 149);
  CHECK(index.blocks() == 100);
}

TEST_CASE("a guess ends in its time, unless the node confirmed it") {
  PrefixIndex index;
  const std::vector<uint64_t> prompt{1, 2, 3};
  index.guess(0, prompt, t0 + 5s);
  CHECK(index.match(prompt, 1) == Lengths{3});
  CHECK(index.deadline() == t0 + 5s);
  index.add(0, 1);
  index.tick(t0 + 4s);
  CHECK(index.match(prompt, 1) == Lengths{3});
  index.tick(t0 + 5s);
  CHECK(index.match(prompt, 1) == Lengths{1});
  CHECK(index.deadline() == Time::max());
}

TEST_CASE("a guess takes nothing from what was reported, and can be prolonged or withdrawn") {
  PrefixIndex index;
  const std::vector<uint64_t> prompt{1, 2};
  index.add(0, 1);
  const auto a = index.guess(0, prompt, t0 + 1s);
  index.prolong(a, t0 + 9s);
  index.tick(t0 + 2s);
  CHECK(index.match(prompt, 1) == Lengths{2});
  index.withdraw(a);
  CHECK(index.match(prompt, 1) == Lengths{1});
  index.withdraw(a);
  index.prolong(a, t0 + 20s);
  CHECK(index.deadline() == Time::max());
  index.guess(0, prompt, t0 + 30s);
  index.forget(0);
  CHECK(index.blocks() == 0);
  CHECK(index.deadline() == Time::max());
}

}  // namespace prefix_index_test
