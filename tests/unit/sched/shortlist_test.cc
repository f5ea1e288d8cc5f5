#include "sched/shortlist.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "sched/prefix_index.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::sched;
using namespace std::chrono_literals;

namespace shortlist_test {
namespace {

// A cluster of random state, told to the shortlists change by change.
struct Scene {
  Scene(uint64_t seed, std::string policy, uint64_t size = 0)
      : random(seed),
        nodes(size > 0             ? size
              : random.chance(0.3) ? 200 + random.below(4000)
                                   : 1 + random.below(100)),
        cost(cost::tiny()),
        options{.policy = std::move(policy), .balancing_threshold = 1 + random.uniform() * 3},
        prefills(options, names("p", nodes)),
        decodes(cost, names("d", nodes)) {
    options.prefix_weight = random.uniform() * 2;
    ledgers.resize(nodes);
    view.prefill.resize(nodes);
    view.decode.resize(nodes);
    for (uint32_t i = 0; i < nodes; ++i) {
      view.prefill[i].name = "p" + std::to_string(i);
      view.decode[i].name = "d" + std::to_string(i);
      change(i);
      change_decode(i);
    }
    for (uint64_t tag = 1; tag <= 12; ++tag) {  // from all nodes to none
      const double share = tag < 3 ? 0.97 : std::pow(random.uniform(), 3.0);
      for (uint32_t i = 0; i < nodes; ++i)
        if (random.chance(share)) index.add(static_cast<PrefixIndex::Slot>(i), tag);
    }
  }
  static std::vector<std::string> names(const char* kind, uint64_t n) {
    std::vector<std::string> out;
    for (uint64_t i = 0; i < n; ++i) out.push_back(kind + std::to_string(i));
    return out;
  }

  void change(uint32_t i) {
    PrefillView& v = view.prefill[i];
    const uint64_t what = random.below(10);
    if (what < 4 && v.requests < 5) {
      ledgers[i].charge(next, static_cast<double>(random.below(4)) * 2.5, 1 + random.below(3), now);
      jobs.emplace_back(i, next++);
      ++v.requests;
      v.assigned += random.below(3);
    } else if (what < 8) {
      for (auto it = jobs.begin(); it != jobs.end(); ++it)
        if (it->first == i) {
          ledgers[i].finish(it->second, now);
          jobs.erase(it);
          --v.requests;
          break;
        }
    } else {
      v.usable = random.chance(0.9);
    }
    v.queued_tokens = ledgers[i].tokens();
    // Of some, the queue, the link or the fetches are not as others are.
    const bool draws = options.policy == "p2c";
    if (!draws && random.chance(uneven))
      ledgers[i].correct(next, static_cast<double>(random.below(12)), now);
    links.resize(nodes);
    links[i] = {};
    if (random.chance(uneven)) links[i].learn(1, 1 + 3 * random.uniform(), now);
    v.fetch_congestion = random.chance(uneven) ? 1 + 3 * random.uniform() : 1;
    CandidateRank rank = CandidateRank::of(ledgers[i], v.requests, v.assigned);
    rank.exact = !ledgers[i].corrected(now) && v.fetch_congestion == 1;
    const bool by_cache = options.policy == "kvcache" || options.policy == "local";
    if (by_cache) rank.link = links[i];
    rank.behind -= ledgers[i].ahead(now);
    bound.resize(nodes);
    bound[i] = v.usable && (!rank.exact || links[i].factor(now) > 1);
    if (v.usable)
      prefills.put(i, rank);
    else
      prefills.drop(i);
  }
  void change_decode(uint32_t i) {
    DecodeView& v = view.decode[i];
    v.requests = random.below(5);
    v.context_tokens = v.requests * random.below(3) * 1000;
    v.usable = random.chance(0.9);
    free.resize(nodes);
    free[i] = random.chance(room) ? 1000 : 10;
    if (v.usable)
      decodes.put(i, v.requests, v.context_tokens, free[i]);
    else
      decodes.drop(i);
  }

  Random random;
  uint64_t nodes;
  double room = random.uniform(), uneven = random.chance(0.5) ? 0 : random.uniform() / 2;
  std::vector<bool> bound;  // its rank is
  Cost cost;
  PolicyOptions options;
  PrefillShortlist prefills;
  DecodeShortlist decodes;
  std::vector<Ledger> ledgers;
  std::vector<Congestion> links;
  std::vector<std::pair<uint32_t, uint64_t>> jobs;
  std::vector<int64_t> free;
  PrefixIndex index;
  View view;
  Time now{1s};
  uint64_t next = 1;
};

void same(const Decision& all, const Decision& few, const View& of_all, const View& of_few) {
  REQUIRE(few.verdict == all.verdict);
  CHECK(few.reason == all.reason);
  if (all.verdict != Verdict::kAccept) return;
  REQUIRE(few.chosen.name == all.chosen.name);
  CHECK(of_few.decode[few.decode].name == of_all.decode[all.decode].name);
  CHECK(few.best_tokens == all.best_tokens);
  CHECK(few.tbt_ms == all.tbt_ms);
  CHECK(few.chosen.ttft_ms == all.chosen.ttft_ms);
  CHECK(few.chosen.reused_tokens == all.chosen.reused_tokens);
  CHECK(few.chosen.fetch_ms == all.chosen.fetch_ms);
}

void decide(Scene& s) {
  std::vector<uint64_t> tags;
  const uint64_t start = s.random.chance(0.2) ? 6 : 1;
  for (uint64_t t = start; t < start + 1 + s.random.below(12); ++t) tags.push_back(t);
  const Ask ask{.tokens = tags.size() * 64 + s.random.below(3000),
                .block_tokens = 64,
                .number = s.random.below(1000)};
  const auto match = s.index.match(tags, s.nodes);
  for (uint32_t i = 0; i < s.nodes; ++i) {
    s.view.prefill[i].match = match[i];
    s.view.prefill[i].queue_ms = s.ledgers[i].wait_ms(s.now);
    s.view.prefill[i].congestion = s.links[i].factor(s.now);
    s.view.decode[i].room = s.free[i] >= 500;
  }
  const Decision all = choose(s.view, ask, s.options, s.cost);
  View few;
  const Matches matches = s.index.matches(tags, s.nodes);
  for (const auto& [node, usable] : s.prefills.pick(matches, ask, s.now)) {
    few.prefill.push_back(s.view.prefill[node]);
    few.prefill.back().usable = usable;
    CHECK(matches.of(static_cast<PrefixIndex::Slot>(node)) == match[node]);
  }
  // One for each length, one that holds the most, and those whose ranks are bounds.
  CHECK(few.prefill.size() <=
        14 + static_cast<size_t>(std::count(s.bound.begin(), s.bound.end(), true)));
  if (const auto node = s.decodes.pick(500)) few.decode.push_back(s.view.decode[*node]);
  same(all, choose(few, ask, s.options, s.cost), s.view, few);
}

}  // namespace

TEST_CASE("a shortlist decides as a look at every node does, for every policy and state") {
  for (const std::string& policy : kPolicies)
    for (uint64_t seed = 1; seed <= fewer(12); ++seed) {
      CAPTURE(policy);
      CAPTURE(seed);
      Scene s(seed, policy);
      for (int turn = 0; turn < 60; ++turn) {
        CAPTURE(turn);
        s.now += Duration(s.random.below(4'000'000));
        for (uint64_t k = s.random.below(s.nodes / 4 + 2); k > 0; --k) {
          s.change(static_cast<uint32_t>(s.random.below(s.nodes)));
          s.change_decode(static_cast<uint32_t>(s.random.below(s.nodes)));
        }
        decide(s);
      }
    }
}

TEST_CASE("of 10,000 nodes of each kind a decision looks at a few, and is the same") {
  Scene s(1, "kvcache", 10'000);
  for (int turn = 0; turn < 20 / kSlow; ++turn) {
    CAPTURE(turn);
    s.now += Duration(s.random.below(4'000'000));
    s.change(static_cast<uint32_t>(s.random.below(s.nodes)));
    s.change_decode(static_cast<uint32_t>(s.random.below(s.nodes)));
    decide(s);
  }
}

TEST_CASE(
    "of nodes that may be worse placed than their rank, those behind the best are not listed") {
  constexpr uint32_t kNodes = 1000;
  PrefillShortlist list({}, Scene::names("p", kNodes));
  PrefixIndex index;
  const std::vector<uint64_t> tags{1, 2};
  for (uint32_t i = 0; i < kNodes; ++i) {
    index.add(static_cast<PrefixIndex::Slot>(i), std::span(tags).first(i % 3));
    list.put(i, {.behind = Duration(i), .assigned = 1, .exact = i % 5 == 4});
  }
  const Ask ask{.tokens = 128, .block_tokens = 64, .number = 0};
  const auto listed = list.pick(index.matches(tags, kNodes), ask, Time{});
  std::vector<uint32_t> nodes;
  for (const auto& [node, usable] : listed) nodes.push_back(node);
  // Of each length the first whose rank is exact (9, 4 and 14), and those before it.
  CHECK(nodes == std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 14});
}

TEST_CASE("no node that is usable: nothing is listed but what others can fetch") {
  PrefillShortlist list({}, {"a", "b"});
  PrefixIndex index;
  const std::vector<uint64_t> tags{1, 2};
  const Ask ask{.tokens = 128, .block_tokens = 64, .number = 0};
  CHECK(list.pick(index.matches(tags, 2), ask, Time{}).empty());
  index.add(1, 1);
  list.put(0, {});
  const auto listed = list.pick(index.matches(tags, 2), ask, Time{});
  REQUIRE(listed.size() == 2);
  CHECK(listed[0].usable);
  CHECK(!listed[1].usable);
  list.drop(0);
  list.drop(0);
  CHECK(list.size() == 0);
  CHECK(!DecodeShortlist(Cost(cost::tiny()), {"d"}).pick(1));
}

}  // namespace shortlist_test
