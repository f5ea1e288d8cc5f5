#include "sched/holder_set.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "base/random.h"
#include "sched/prefix_index.h"

using namespace mc;
using namespace mc::sched;

namespace holder_set_test {

namespace {
constexpr HolderSet::Slot kGuess = HolderSet::kGuessed;
}

TEST_CASE("a set is a list while few hold, a bitmap while many do, and the same to its user") {
  Random random(3);
  HolderSet set;
  std::map<HolderSet::Slot, bool> truth;  // slot: a guess
  bool was_wide = false, was_list_again = false;
  for (int i = 0; i < 60'000; ++i) {
    const bool growing = i % 20'000 < 8'000;
    const auto slot = static_cast<HolderSet::Slot>(random.below(300));
    const bool guess = random.chance(0.3);
    if (random.chance(growing ? 0.8 : 0.05)) {
      set.hold(guess ? slot | kGuess : slot);
      const auto it = truth.find(slot);
      truth[slot] = guess && (it == truth.end() || it->second);
    } else {
      const auto it = truth.find(slot);
      const bool goes = it != truth.end() && (!guess || it->second);
      REQUIRE(set.drop(slot, guess) == goes);
      if (goes) truth.erase(it);
    }
    was_wide |= set.wide();
    was_list_again |= was_wide && !set.wide();
    REQUIRE(set.size() == truth.size());
    REQUIRE(set.holds(slot) == truth.contains(slot));
  }
  CHECK(was_wide);
  CHECK(was_list_again);
  auto values = set.values();
  std::sort(values.begin(), values.end(),
            [](auto a, auto b) { return (a & ~kGuess) < (b & ~kGuess); });
  REQUIRE(values.size() == truth.size());
  size_t i = 0;
  for (const auto& [slot, guess] : truth) CHECK(values[i++] == (guess ? slot | kGuess : slot));
}

// Chains whose holders thin out from everybody to a few, in every order of wide and narrow blocks.
TEST_CASE("match agrees with counting one by one when many hold a prompt") {
  Random random(9);
  for (int round = 0; round < 200; ++round) {
    PrefixIndex index;
    const size_t blocks = 1 + random.below(40), slots = 1 + random.below(300);
    std::vector<uint64_t> prompt;
    for (size_t b = 0; b < blocks; ++b) prompt.push_back(random.next());
    std::vector<std::vector<bool>> holds(slots, std::vector<bool>(blocks));
    for (size_t b = 0; b < blocks; ++b) {
      const double share = random.below(4) == 0 ? 0.03 : random.below(2) == 0 ? 0.5 : 0.97;
      for (size_t s = 0; s < slots; ++s)
        if ((holds[s][b] = b == 0 || random.chance(share)))
          index.add(static_cast<PrefixIndex::Slot>(s), prompt[b]);
    }
    for (const size_t asked : {slots, slots / 2, slots + 70}) {
      const auto lengths = index.match(prompt, asked);
      REQUIRE(lengths.size() == asked);
      for (size_t s = 0; s < asked; ++s) {
        size_t n = 0;
        while (s < slots && n < blocks && holds[s][n]) ++n;
        REQUIRE(lengths[s] == n);
      }
    }
  }
}

TEST_CASE("the index keeps within 24 bytes a block as it grows, and gives sets back") {
  PrefixIndex index;
  for (uint64_t i = 0; i < 300'000; ++i) {
    index.add(static_cast<PrefixIndex::Slot>(i % 700), mix64(i));
    if (i > 10'000 && i % 9'973 == 0) REQUIRE(index.bytes() <= 24 * index.blocks());
  }
  const size_t before = index.bytes();
  for (int round = 0; round < 3; ++round) {
    for (PrefixIndex::Slot s = 0; s < 700; ++s)
      for (uint64_t i = 0; i < 100; ++i) index.add(s, mix64(i));
    for (PrefixIndex::Slot s = 0; s < 700; ++s)
      for (uint64_t i = 0; i < 100; ++i)
        if (i % 700 != s) index.remove(s, mix64(i));
  }
  CHECK(index.blocks() == 300'000);
  CHECK(index.bytes() < before + 64 * 1024);
}

}  // namespace holder_set_test
