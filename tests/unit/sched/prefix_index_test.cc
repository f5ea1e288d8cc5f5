#include "sched/prefix_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
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
      CHECK(index.retire(3));
      CHECK(index.sweep(SIZE_MAX).size() == 1);
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

TEST_CASE("F75: a retired slot is out of all matches at once, and out of the table in parts") {
  constexpr uint64_t kBlocks = 100'000;
  PrefixIndex index;
  for (uint64_t tag = 0; tag < kBlocks; ++tag)
    index.add(static_cast<PrefixIndex::Slot>(tag % 3), tag);
  for (uint64_t tag = 0; tag < 10; ++tag) index.add(5, tag);           // with another
  for (uint64_t tag = 0; tag < 3; ++tag) index.add(5, kBlocks + tag);  // alone
  for (PrefixIndex::Slot s = 100; s < 300; ++s) index.add(s, 0);       // many hold this one
  const auto guess = index.guess(5, std::vector<uint64_t>{7, kBlocks + 7}, t0 + 5s);
  CHECK(!index.retire(6));  // it never had one
  CHECK(index.retire(5));
  const std::vector<uint64_t> prompt{0, 1, 2};
  CHECK(index.match(prompt, 300)[5] == 0);
  CHECK(index.match(std::vector<uint64_t>{kBlocks}, 6) == Lengths(6));
  CHECK(index.match(std::vector<uint64_t>{kBlocks + 7}, 6) == Lengths(6));
  index.withdraw(guess);
  // A pass looks at 1,000 entries a time, and goes on while blocks come and go.
  Random random(1);
  std::vector<PrefixIndex::Slot> swept;
  size_t parts = 0;
  for (; swept.empty(); ++parts) {
    REQUIRE(parts < 1000);
    swept = index.sweep(1000);
    if (parts == 10) CHECK(index.retire(150));  // its turn comes after this pass
    for (int i = 0; i < 100; ++i) {
      const uint64_t tag = kBlocks + 1000 + random.below(2000);
      if (random.chance(0.5))
        index.add(1, tag);
      else
        index.remove(1, tag);
    }
  }
  CHECK(parts > kBlocks / 1000);
  CHECK(swept == std::vector<PrefixIndex::Slot>{5});
  CHECK(index.match(prompt, 300)[150] == 0);
  for (swept.clear(); swept.empty();) swept = index.sweep(100'000);
  CHECK(swept == std::vector<PrefixIndex::Slot>{150});
  CHECK(index.match(prompt, 300)[149] == 1);
  // Given out again, they have what is added from now on and nothing else.
  index.add(5, 1);
  CHECK(index.match(std::vector<uint64_t>{1}, 6)[5] == 1);
  CHECK(index.match(prompt, 300)[5] == 0);
  CHECK(index.match(std::vector<uint64_t>{kBlocks}, 6) == Lengths(6));
}

TEST_CASE("sweeping while entries move leaves nothing of any retired slot") {
  Random random(2);
  PrefixIndex index;
  std::vector<PrefixIndex::Slot> spare{8, 9, 10, 11};
  std::vector<PrefixIndex::Slot> of{0, 1, 2, 3, 4, 5, 6, 7};  // of each node
  std::map<uint64_t, std::set<size_t>> truth;
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t tag = random.below(20'000);
    const size_t node = random.below(of.size());
    if (random.chance(0.55)) {
      index.add(of[node], tag);
      truth[tag].insert(node);
    } else {
      index.remove(of[node], tag);
      truth[tag].erase(node);
    }
    for (const auto slot : index.sweep(7)) spare.push_back(slot);
    if (i % 2000 == 0 && !spare.empty()) {
      if (!index.retire(of[node])) spare.push_back(of[node]);
      of[node] = spare.front();
      spare.erase(spare.begin());
      for (auto& [t, nodes] : truth) nodes.erase(node);
    }
  }
  for (int pass = 0; pass < 3; ++pass) index.sweep(SIZE_MAX);
  size_t blocks = 0;
  for (uint64_t tag = 0; tag < 20'000; ++tag) {
    const auto lengths = index.match(std::vector<uint64_t>{tag}, 12);
    for (size_t node = 0; node < of.size(); ++node)
      REQUIRE(lengths[of[node]] == (truth[tag].contains(node) ? 1 : 0));
    blocks += !truth[tag].empty();
  }
  CHECK(index.blocks() == blocks);
}

TEST_CASE("blocks added and removed many at once are as when each is named alone") {
  Random random(3);
  PrefixIndex whole, single;
  std::vector<std::vector<uint64_t>> prompts(200);
  for (auto& tags : prompts) {  // they share starts, and some blocks stand twice
    const uint64_t start = random.below(10), own = random.next();
    const size_t shared = random.below(20), n = random.below(200);
    for (size_t i = 0; i < n; ++i) tags.push_back(mix64(i < shared ? start << 32 | i : own + i));
    if (n > 2) tags[n - 1] = tags[n / 2];
  }
  for (int i = 0; i < 5000; ++i) {
    const auto& tags = prompts[random.below(prompts.size())];
    const auto slot = static_cast<PrefixIndex::Slot>(random.below(8));
    const size_t from = random.below(tags.size() + 1);
    std::vector<uint64_t> part(tags.begin() + static_cast<ptrdiff_t>(from), tags.end());
    if (random.chance(0.3)) std::reverse(part.begin(), part.end());
    if (random.chance(0.6)) {
      whole.add(slot, part);
      for (const uint64_t tag : part) single.add(slot, tag);
    } else {
      whole.remove(slot, part);
      for (const uint64_t tag : part) single.remove(slot, tag);
    }
    const auto& asked = prompts[random.below(prompts.size())];
    REQUIRE(whole.match(asked, 8) == single.match(asked, 8));
  }
  CHECK(whole.blocks() == single.blocks());
}

TEST_CASE("an index costs 24 bytes a block at any size, and no more when blocks come and go") {
  PrefixIndex index;
  constexpr uint64_t kPrompt = 100;
  const auto tags = [](uint64_t prompt) {
    std::vector<uint64_t> all(kPrompt);
    for (uint64_t i = 0; i < kPrompt; ++i) all[i] = mix64(prompt << 32 | i);
    return all;
  };
  uint64_t prompts = 0;
  for (; prompts < 3000; ++prompts) {
    index.add(static_cast<PrefixIndex::Slot>(prompts % 3), tags(prompts));
    if (prompts > 50) REQUIRE(index.bytes() <= 24 * index.blocks());
  }
  const size_t before = index.bytes(), blocks = index.blocks();
  Random random(4);
  for (int i = 0; i < 10'000; ++i, ++prompts) {  // the oldest goes, from either end
    auto gone = tags(prompts - 3000);
    if (random.chance(0.5)) std::reverse(gone.begin(), gone.end());
    index.remove(static_cast<PrefixIndex::Slot>((prompts - 3000) % 3), gone);
    index.add(static_cast<PrefixIndex::Slot>(prompts % 3), tags(prompts));
  }
  CHECK(index.blocks() == blocks);
  CHECK(index.bytes() == before);
  CHECK(index.match(tags(prompts - 1), 3)[(prompts - 1) % 3] == kPrompt);
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
  CHECK(index.retire(0));
  CHECK(index.sweep(SIZE_MAX).size() == 1);
  CHECK(index.blocks() == 0);
  CHECK(index.deadline() == Time::max());
}

}  // namespace prefix_index_test
