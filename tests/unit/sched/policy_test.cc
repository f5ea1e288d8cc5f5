#include "sched/policy.h"

#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "sched/pool_plan.h"

using namespace mc;
using namespace mc::sched;
using namespace std::chrono_literals;

namespace policy_test {

namespace {

Cost cost() { return Cost(cost::tiny()); }

PrefillView node(const char* name, uint32_t match = 0, double queue_ms = 0) {
  PrefillView v;
  v.name = name;
  v.match = match;
  v.queue_ms = queue_ms;
  return v;
}

DecodeView decode(const char* name, uint64_t requests = 0) {
  DecodeView v;
  v.name = name;
  v.requests = requests;
  return v;
}

const Ask kAsk{.tokens = 12'000, .block_tokens = 256, .number = 0};

std::string chosen(const View& view, const PolicyOptions& o, const Ask& ask = kAsk) {
  const Decision d = choose(view, ask, o, cost());
  return d.verdict == Verdict::kAccept ? d.chosen.name : name(d.verdict);
}

}  // namespace

TEST_CASE("kvcache prefers the node that holds the prefix, until its queue costs more") {
  const PolicyOptions o;
  CHECK(chosen({{node("a"), node("b", 40)}, {decode("d")}}, o) == "b");
  CHECK(chosen({{node("a"), node("b", 40, 5)}, {decode("d")}}, o) == "b");
  CHECK(chosen({{node("a"), node("b", 40, 500)}, {decode("d")}}, o) == "a");
}

TEST_CASE("a decision adds up and names the second best") {
  const Decision d =
      choose({{node("a"), node("b", 40, 5)}, {decode("d")}}, kAsk, PolicyOptions{}, cost());
  REQUIRE(d.verdict == Verdict::kAccept);
  const Candidate& c = d.chosen;
  CHECK(c.ttft_ms ==
        doctest::Approx(std::max(c.queue_ms, c.fetch_ms) + c.prefill_ms + c.transfer_ms));
  CHECK(c.local_tokens == 40 * 256);
  CHECK(d.best_tokens == 40 * 256);
  CHECK(d.candidates.size() == 2);
  CHECK(d.margin_ms == doctest::Approx(d.candidates[0].ttft_ms - d.candidates[1].ttft_ms));
  CHECK(explain(d).find("longest match") != std::string::npos);
}

TEST_CASE("a much longer match elsewhere is fetched, when that is faster than computing") {
  PolicyOptions o;
  const View view{{node("a", 10), node("b", 40, 1000)}, {decode("d")}};
  Decision d = choose(view, kAsk, o, cost());
  CHECK(d.chosen.name == "a");
  CHECK(d.chosen.reused_tokens == 40 * 256);
  CHECK(d.chosen.fetch_ms > 0);
  o.balancing_threshold = 5;  // 40 is not more than 5 times 10
  d = choose(view, kAsk, o, cost());
  CHECK(d.chosen.reused_tokens == 10 * 256);
  CHECK(d.chosen.fetch_ms == 0);
  auto slow = cost::tiny();
  slow.cost.transfer_bytes_per_s = 1e6;
  d = choose(view, kAsk, PolicyOptions{}, Cost(slow));
  CHECK(d.chosen.fetch_ms == 0);
}

TEST_CASE("a shared system prompt does not send everything to one node") {
  View view{{node("a", 2), node("b")}, {decode("d")}};  // 512 of 12000 tokens
  view.prefill[0].assigned = 1;
  CHECK(chosen(view, PolicyOptions{}) == "b");
  view.prefill[1].assigned = 2;
  CHECK(chosen(view, PolicyOptions{}) == "a");
}

TEST_CASE("ties go to fewest queued tokens, then to the first name") {
  View view{{node("b"), node("a")}, {decode("d")}};
  CHECK(chosen(view, PolicyOptions{}) == "a");
  view.prefill[1].queued_tokens = 10;
  CHECK(chosen(view, PolicyOptions{}) == "b");
}

TEST_CASE("the other policies look at what they say they do") {
  View view{{node("a", 40, 30), node("b", 0, 20), node("c", 0, 25)}, {decode("d")}};
  view.prefill[0].requests = 1;
  view.prefill[1].requests = 3;
  view.prefill[2].requests = 2;
  PolicyOptions o;
  o.policy = "load";
  CHECK(chosen(view, o) == "b");
  o.policy = "count";
  CHECK(chosen(view, o) == "a");
  o.policy = "rr";
  Ask ask = kAsk;
  std::string turn;
  for (ask.number = 0; ask.number < 4; ++ask.number) turn += chosen(view, o, ask);
  CHECK(turn == "abca");
  view.prefill[0].usable = false;
  CHECK(chosen(view, o) == "b");
}

TEST_CASE("random is the same for the same seed, and reaches every node") {
  const View view{{node("a"), node("b"), node("c")}, {decode("d")}};
  PolicyOptions o;
  o.policy = "random";
  o.seed = 7;
  std::string one, two, other;
  Ask ask = kAsk;
  for (ask.number = 0; ask.number < 50; ++ask.number) {
    one += chosen(view, o, ask);
    two += chosen(view, o, ask);
  }
  o.seed = 8;
  for (ask.number = 0; ask.number < 50; ++ask.number) other += chosen(view, o, ask);
  CHECK(one == two);
  CHECK(one != other);
  CHECK(std::set<char>(one.begin(), one.end()).size() == 3);
}

TEST_CASE("decode goes where the time between tokens stays least, and where there is room") {
  View view{{node("p")}, {decode("x", 3), decode("y", 1)}};
  Decision d = choose(view, kAsk, PolicyOptions{}, cost());
  CHECK(view.decode[d.decode].name == "y");
  CHECK(d.tbt_ms > 0);
  view.decode[1].room = false;
  d = choose(view, kAsk, PolicyOptions{}, cost());
  CHECK(view.decode[d.decode].name == "x");
  view.decode[0].usable = false;  // a node that seems full is still asked when it is the only one
  d = choose(view, kAsk, PolicyOptions{}, cost());
  CHECK(view.decode[d.decode].name == "y");
}

TEST_CASE("weighted trades cached tokens for queued ones, at the weight it was given") {
  View view{{node("a", 40), node("b", 0)}, {decode("d")}};  // a holds 10240 tokens of the prompt
  view.prefill[0].queued_tokens = 12'000;
  PolicyOptions o;
  o.policy = "weighted";
  CHECK(chosen(view, o) == "b");
  o.prefix_weight = 2;
  CHECK(chosen(view, o) == "a");
  o.prefix_weight = 0;
  CHECK(chosen(view, o) == "b");
}

TEST_CASE("a node whose link is congested is avoided, and tried again later") {
  Congestion c;
  Time now{};
  CHECK(c.factor(now) == 1);
  for (int i = 0; i < 20; ++i) c.learn(10, 50, now);
  CHECK(c.factor(now) == doctest::Approx(5).epsilon(0.01));
  c.learn(10, 1e300, now);
  c.learn(0, 50, now);
  CHECK(c.factor(now) < 40);
  Congestion fast;
  fast.learn(50, 10, now);
  CHECK(fast.factor(now) == 1);
  View view{{node("a"), node("b")}, {decode("d")}};
  CHECK(chosen(view, PolicyOptions{}) == "a");
  view.prefill[0].congestion = c.factor(now);
  CHECK(chosen(view, PolicyOptions{}) == "b");
  CHECK(c.factor(now + 100s) == doctest::Approx(1).epsilon(0.05));
  FetchLinks links;
  CHECK(links.version() == 0);
  links.learn("a", 10, 20, now);
  const uint64_t before = links.version();
  links.learn("b", 10, 90, now);
  CHECK(links.version() != before);
  CHECK(links.holders() == std::vector<std::string>{"a", "b"});
  CHECK(links.any(now + 20s));
  CHECK_FALSE(links.any(now + 200s));
}

TEST_CASE("without nodes of a kind nothing is chosen") {
  const PolicyOptions o;
  CHECK(chosen({{}, {decode("d")}}, o) == "no_prefill");
  CHECK(chosen({{node("p")}, {}}, o) == "no_decode");
}

TEST_CASE("where nothing is usable, the reason says which external engines are not") {
  const auto why = [](const View& view) {
    return choose(view, {.tokens = 512, .block_tokens = 256, .number = 0}, PolicyOptions{}, cost())
        .reason;
  };
  const auto down = [](const char* name, bool whole) {
    PrefillView v = node(name);
    v.usable = false;
    v.whole = whole;
    return v;
  };
  CHECK(why({{}, {decode("d")}}) ==
        "neither a prefill node nor an external engine of this model is there");
  CHECK(why({{down("p", false)}, {decode("d")}}) == "no prefill node is usable");
  CHECK(why({{node("p")}, {}}) == "no decode node is usable");
  CHECK(why({{down("e1", true), down("e2", true)}, {}}) ==
        "no external engine of this model is usable: e1, e2");
  CHECK(why({{node("p"), down("e1", true)}, {}}) ==
        "no decode node is usable, nor an external engine of this model: e1");
  View many;
  for (const char* name : {"1", "2", "3", "4", "5"}) many.prefill.push_back(down(name, true));
  CHECK(why(many) == "no external engine of this model is usable: 1, 2, 3, 4, ...");
}

TEST_CASE("at least one token of a prompt is computed, however much is cached") {
  const Ask ask{.tokens = 512, .block_tokens = 256, .number = 0};
  const Decision d = choose({{node("p", 2)}, {decode("d")}}, ask, PolicyOptions{}, cost());
  CHECK(d.chosen.local_tokens == 256);
}

TEST_CASE("the estimates follow what was measured, within bounds") {
  Cost c = cost();
  const double model = c.prefill_ms(1000, 0);
  for (int i = 0; i < 200; ++i) c.learn_prefill(1000, 0, 3 * model);
  CHECK(c.prefill_ms(1000, 0) == doctest::Approx(3 * model).epsilon(0.01));
  c.learn_prefill(1000, 0, -1);
  c.learn_prefill(1000, 0, 1e300);
  CHECK(c.prefill_factor() < 15);
  const double before = c.transfer_ms(1000);
  for (int i = 0; i < 200; ++i) c.learn_transfer(1'000'000, 10);  // 100 MB/s
  CHECK(c.transfer_ms(1000) > 10 * before);
  c.learn_transfer(10, 1000);  // too small to tell
  CHECK(c.transfer_bytes_per_s() == doctest::Approx(1e8).epsilon(0.01));
}

TEST_CASE("a first prompt of a few tokens teaches little") {
  Cost c = cost();
  c.learn_prefill(10, 0, 0.01 * c.spec_prefill_ms(10, 0));
  CHECK(c.prefill_factor() > 0.7);
}

TEST_CASE("the first prompts teach how much faster the machine is, later ones a tenth each") {
  Cost c = cost();
  c.learn_prefill(10, 0, 40 * c.spec_prefill_ms(10, 0));  // a short one that was disturbed
  CHECK(c.prefill_factor() == doctest::Approx(4.9));
  const double model = c.spec_prefill_ms(100'000, 0);
  c.learn_prefill(100'000, 0, 0.2 * model);
  CHECK(c.prefill_factor() < 0.4);
  for (int i = 0; i < 20; ++i) c.learn_prefill(100'000, 0, 0.2 * model);
  CHECK(c.prefill_factor() == doctest::Approx(0.2).epsilon(0.05));
  c.learn_prefill(100'000, 0, 1.2 * model);
  CHECK(c.prefill_factor() == doctest::Approx(0.3).epsilon(0.05));
  c.learn_prefill(1000, 0, 0.1 * c.spec_prefill_ms(1000, 0));
  CHECK(c.prefill_factor() == doctest::Approx(0.28).epsilon(0.05));
}

TEST_CASE("local reuses what each node holds, and never fetches") {
  PolicyOptions o;
  const View view{{node("a", 10), node("b", 40, 1000)}, {decode("d")}};
  CHECK(choose(view, kAsk, o, cost()).chosen.fetch_ms > 0);
  o.policy = "local";
  const Decision d = choose(view, kAsk, o, cost());
  CHECK(d.chosen.name == "a");
  CHECK(d.chosen.reused_tokens == 10 * 256);
  CHECK(d.chosen.fetch_ms == 0);
  CHECK(chosen({{node("a"), node("b", 40, 5)}, {decode("d")}}, o) == "b");
}

TEST_CASE("p2c takes the shorter queue of two, and no node is left out") {
  PolicyOptions o;
  o.policy = "p2c";
  const View view{{node("a", 0, 9), node("b", 0, 1), node("c", 0, 5)}, {decode("d")}};
  std::map<std::string, int> times;
  for (uint64_t i = 0; i < 900; ++i) {
    Ask ask = kAsk;
    ask.number = i;
    ++times[chosen(view, o, ask)];
  }
  CHECK(times["b"] > 400);  // 5 of 9
  CHECK(times["c"] > 200);  // 3 of 9
  CHECK(times["a"] > 50);   // 1 of 9: drawn twice
}

namespace {

const Ask kLong{.tokens = 16'000, .block_tokens = 256, .number = 0};  // 62 full blocks

// A pool that has these of the prompt's blocks: 'm' in memory, 'd' on a disk, '.' not.
// `nodes`: of each block a digit, the number of the node that has it.
PoolMatch pool_with(const std::string& tiers, size_t held, const std::string& nodes = {}) {
  PoolIndex index(1000);
  std::vector<uint64_t> tags;
  for (size_t i = 0; i < tiers.size(); ++i) {
    tags.push_back(mix64(i + 1));
    const PoolTier tier = tiers[i] == 'm'   ? PoolTier::kMemory
                          : tiers[i] == 'd' ? PoolTier::kDisk
                                            : PoolTier::kNone;
    index.put(tags.back(), {tier, static_cast<uint16_t>(nodes.empty() ? 0 : nodes[i] - '0')});
  }
  return index.match(tags, held);
}

PrefillView pooled(PrefillView v, PoolUse use = PoolUse::kAuto) {
  v.pool = use;
  return v;
}

}  // namespace

TEST_CASE("what the pool has counts as reused, with the time of its fetch") {
  const View empty{{pooled(node("a"))}, {decode("d")}};
  View view = empty;
  view.pool = pool_with(std::string(62, 'm'), 0);
  const Decision cold = choose(empty, kLong, PolicyOptions{}, cost());
  const Decision d = choose(view, kLong, PolicyOptions{}, cost());
  CHECK(d.chosen.reused_tokens == 62 * 256);
  CHECK(d.chosen.pool_memory_tokens == 62 * 256);
  CHECK(d.chosen.local_tokens == 0);
  CHECK(d.best_tokens == 62 * 256);
  CHECK(d.chosen.pool_ms == doctest::Approx(cost().pool_ms(62 * 256, 0)));
  CHECK(d.ttft_ms() ==
        doctest::Approx(d.chosen.pool_ms + d.chosen.prefill_ms + d.chosen.transfer_ms));
  CHECK(d.ttft_ms() < cold.ttft_ms() * 0.6);
  CHECK(explain(d).find("15872 from the pool's memory") != std::string::npos);
  CHECK(d.reason == "shortest queue, fetching from the pool");
}

TEST_CASE("a disk is slower than memory, and what computing is faster than is not fetched") {
  View view{{pooled(node("a"))}, {decode("d")}};
  view.pool = pool_with(std::string(62, 'd'), 0);
  Cost quick = cost();
  for (int i = 0; i < 30; ++i) quick.learn_pool(0, 62 * 256, 17);
  const Decision d = choose(view, kLong, PolicyOptions{}, quick);
  CHECK(d.chosen.pool_disk_tokens == 62 * 256);
  CHECK(d.chosen.pool_ms == doctest::Approx(17).epsilon(0.01));
  CHECK(d.chosen.pool_ms > quick.pool_ms(62 * 256, 0));

  Cost slow = cost();
  for (int i = 0; i < 100; ++i) slow.learn_pool(0, 62 * 256, 5000);
  CHECK(choose(view, kLong, PolicyOptions{}, slow).chosen.pool_tokens() == 0);
  view.prefill[0].pool = PoolUse::kAlways;  // such a worker does fetch it, and it takes its time
  const Decision always = choose(view, kLong, PolicyOptions{}, slow);
  CHECK(always.chosen.pool_disk_tokens == 62 * 256);
  CHECK(always.ttft_ms() > 3000);
  view.prefill[0].pool = PoolUse::kNever;
  CHECK(choose(view, kLong, PolicyOptions{}, slow).chosen.pool_tokens() == 0);
}

TEST_CASE("blocks on a slow disk are computed, those before them in memory are fetched") {
  View view{{pooled(node("a"))}, {decode("d")}};
  view.pool = pool_with(std::string(40, 'm') + std::string(22, 'd'), 0);
  Cost slow = cost();
  for (int i = 0; i < 100; ++i) slow.learn_pool(0, 62 * 256, 5000);
  const Decision d = choose(view, kLong, PolicyOptions{}, slow);
  CHECK(d.chosen.pool_memory_tokens == 40 * 256);
  CHECK(d.chosen.pool_disk_tokens == 0);
  CHECK(d.chosen.reused_tokens == 40 * 256);
  CHECK(d.chosen.pool_ms == doctest::Approx(slow.pool_ms(40 * 256, 0)));
  CHECK(d.best_tokens == 62 * 256);
  view.pool = pool_with(std::string(22, 'd') + std::string(40, 'm'), 0);  // the disk is in the way
  CHECK(choose(view, kLong, PolicyOptions{}, slow).chosen.pool_tokens() == 0);
  // Nobody reads the disk then, so what was learned fades.
  const Time now{};
  slow.advance(now);
  slow.advance(now + 1200s);
  CHECK(choose(view, kLong, PolicyOptions{}, slow).chosen.pool_disk_tokens == 22 * 256);
}

TEST_CASE("F81: blocks of a slow node are computed, those of others fetched, in whatever order") {
  View view{{pooled(node("a"))}, {decode("d")}};
  Cost c = cost();
  const PoolPlace quick{PoolTier::kDisk, 1}, slow{PoolTier::kDisk, 2};
  const auto fetched = [&](const std::string& nodes) {
    view.pool = pool_with(std::string(nodes.size(), 'd'), 0, nodes);
    return choose(view, kLong, PolicyOptions{}, c).chosen.pool_disk_tokens / 256;
  };
  for (int i = 0; i < 30; ++i) {
    c.learn_pool({{quick, 62 * 256}}, 5);
    c.learn_pool({{slow, 62 * 256}}, 5000);
  }
  CHECK(fetched(std::string(62, '1')) == 62);
  CHECK(fetched(std::string(62, '2')) == 0);
  CHECK(fetched(std::string(40, '1') + std::string(22, '2')) == 40);
  CHECK(fetched(std::string(22, '2') + std::string(40, '1')) == 0);
  std::string mixed;  // one in ten is slow, and all the rest lies behind the first of these
  for (int i = 0; i < 62; ++i) mixed += i % 10 == 5 ? '2' : '1';
  const Decision d = (fetched(mixed), choose(view, kLong, PolicyOptions{}, c));
  CHECK(d.chosen.pool_disk_tokens == 5 * 256);
  CHECK(d.pool == Cost::PoolTokens{{quick, 5 * 256}});
  CHECK(d.chosen.pool_ms ==
        doctest::Approx(Cost::kPoolRoundTripMs + 5 * 256 * c.pool_token_ms(quick)));
  view.prefill[0].pool = PoolUse::kAlways;
  CHECK(choose(view, kLong, PolicyOptions{}, c).pool ==
        Cost::PoolTokens{{quick, 56 * 256}, {slow, 6 * 256}});
}

TEST_CASE("what is fetched is the part that saves most of all parts") {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    Cost c = cost();
    for (uint16_t n = 1; n <= 4; ++n)
      for (int i = 0; i < 10; ++i)
        c.learn_pool({{{PoolTier::kMemory, n}, 62 * 256}},
                     2 + static_cast<double>(random.below(60)));
    std::string tiers, nodes;
    for (int i = 0; i < 62; ++i) {
      tiers += random.chance(0.02) ? '.' : 'm';
      nodes += static_cast<char>('0' + random.below(5));
    }
    const PoolMatch pool = pool_with(tiers, 62, nodes);
    const PoolPlan plan(pool, kLong.tokens, 256, c);
    for (const uint64_t first : {uint64_t{0}, uint64_t{7}, uint64_t{61}}) {
      PoolPlan::Part most;
      double gain = 0, ms = Cost::kPoolRoundTripMs;
      const double all_ms = c.prefill_ms(kLong.tokens, first * 256);
      for (uint64_t at = first; at < 62 && tiers[at] == 'm'; ++at) {
        ms += 256 * c.pool_token_ms(pool.place(at));
        const double saved = all_ms - c.prefill_ms(kLong.tokens, (at + 1) * 256) - ms;
        if (saved <= gain + 1e-9) continue;
        gain = saved;
        most = {at + 1 - first, ms};
      }
      const PoolPlan::Part part = plan.best(first);
      CHECK(part.blocks == most.blocks);
      CHECK(part.ms == doctest::Approx(most.ms));
    }
  }
}

TEST_CASE("a node goes on from the pool behind what it holds itself") {
  View view{{pooled(node("a", 20)), pooled(node("b"))}, {decode("d")}};
  view.pool = pool_with(std::string(20, '.') + std::string(20, 'm') + std::string(10, 'd'), 20);
  Cost quick = cost();  // disks, too
  for (int i = 0; i < 30; ++i) quick.learn_pool(0, 62 * 256, 17);
  const Decision d = choose(view, kLong, PolicyOptions{.policy = "local"}, quick);
  CHECK(d.chosen.name == "a");
  CHECK(d.chosen.local_tokens == 20 * 256);
  CHECK(d.chosen.pool_memory_tokens == 20 * 256);
  CHECK(d.chosen.pool_disk_tokens == 10 * 256);
  CHECK(d.chosen.reused_tokens == 50 * 256);
  CHECK(d.candidates[1].reused_tokens == 0);  // it lacks the first block
  CHECK(d.reason == "shortest ttft, fetching from the pool");
  CHECK(reuse_text(d.chosen) ==
        "5120 local, 5120 from the pool's memory, 2560 from the pool's disks");
}

TEST_CASE("reuse is the best of own, a peer's and the pool's") {
  // The holder is busy. Its prefix comes from it where the pool lacks it, and what follows from the
  // pool; where the pool has all of it and is faster, from there.
  View view{{pooled(node("a")), pooled(node("b", 40, 5000))}, {decode("d")}};
  view.pool = pool_with(std::string(40, '.') + std::string(22, 'm'), 40);
  const Decision peer = choose(view, kLong, PolicyOptions{}, cost());
  CHECK(peer.chosen.name == "a");
  CHECK(peer.chosen.peer_tokens == 40 * 256);
  CHECK(peer.chosen.fetch_ms > 0);
  CHECK(peer.chosen.pool_memory_tokens == 22 * 256);

  view.pool = pool_with(std::string(62, 'm'), 40);
  Cost cost = policy_test::cost();
  for (int i = 0; i < 200; ++i) cost.learn_fetch(uint64_t{1} << 30, 40'000);  // a slow network
  const Decision pool = choose(view, kLong, PolicyOptions{}, cost);
  CHECK(pool.chosen.name == "a");
  CHECK(pool.chosen.peer_tokens == 0);
  CHECK(pool.chosen.fetch_ms == 0);
  CHECK(pool.chosen.pool_memory_tokens == 62 * 256);
}

TEST_CASE("F64: a tail after computing says nothing of how long a whole fetch takes") {
  Cost c = cost();
  for (int i = 0; i < 200; ++i) c.learn_transfer(1'000'000'000, 10);  // sent while it computed
  CHECK(c.transfer_bytes_per_s() > 50e9);
  CHECK(c.fetch_ms(16'000) == doctest::Approx(cost().fetch_ms(16'000)));
  for (int i = 0; i < 60; ++i) c.learn_fetch(16'000'000, 80);
  CHECK(c.fetch_bytes_per_s() == doctest::Approx(200e6).epsilon(0.2));
  c.learn_fetch(1000, 1e6);  // too small to tell
  c.learn_fetch(16'000'000, -1);
  CHECK(c.fetch_bytes_per_s() == doctest::Approx(200e6).epsilon(0.2));
  // On such a network the prefix of a busy holder is computed, however fast tails are.
  const View view{{node("a"), node("b", 40, 5000)}, {decode("d")}};
  CHECK(choose(view, kLong, PolicyOptions{}, cost()).chosen.peer_tokens == 40 * 256);
  CHECK(choose(view, kLong, PolicyOptions{}, c).chosen.peer_tokens == 0);
  // Nobody fetches then, so what was learned fades.
  const Time now{};
  c.advance(now);
  c.advance(now + 600s);
  CHECK(choose(view, kLong, PolicyOptions{}, c).chosen.peer_tokens == 40 * 256);
}

TEST_CASE("F64: who fetches slowly from one holder computes, and tries that pair again later") {
  FetchLinks links;
  const Time now{};
  CHECK(!links.any(now));
  for (int i = 0; i < 20; ++i) links.learn("b", 10, 1000, now);
  links.learn("c", 10, 10, now);
  CHECK(links.factor("b", now) == doctest::Approx(100).epsilon(0.01));
  CHECK(links.factor("c", now) == 1);
  View view{{node("a"), node("b", 40, 5000)}, {decode("d")}};
  const auto peer_tokens = [&](Time at) {
    view.prefill[0].fetch_congestion = links.factor("b", at);
    return choose(view, kLong, PolicyOptions{}, cost()).chosen.peer_tokens;
  };
  for (int i = 0; i < 20; ++i) links.learn("b", 1, 1000, now);
  CHECK(peer_tokens(now) < 40 * 256);
  CHECK(peer_tokens(now + 120s) == 40 * 256);
  CHECK(!links.any(now + 120s));
}

TEST_CASE("F64: what its holder sends shares the link with a fetch") {
  View view{{node("a"), node("b", 40, 5000)}, {decode("d")}};
  const auto chosen_at = [&](uint64_t requests, double bytes_per_s) {
    cost::ModelSpec spec = cost::tiny();
    spec.cost.transfer_bytes_per_s = bytes_per_s;
    view.holder_requests = requests;
    return choose(view, kLong, PolicyOptions{}, Cost(spec)).chosen;
  };
  // A link that sends faster than the holder computes has few transfers at a time.
  const double fast = 50e9;
  CHECK(chosen_at(40, fast).peer_tokens == 40 * 256);
  CHECK(chosen_at(40, fast).fetch_ms > chosen_at(0, fast).fetch_ms);
  CHECK(chosen_at(40, fast).fetch_ms < 1.1 * chosen_at(0, fast).fetch_ms);
  // One that is slower has all of them.
  double slow = fast;  // where the prefix of an idle holder is just worth fetching
  while (chosen_at(0, slow).peer_tokens > 0) slow *= 0.98;
  slow /= 0.98;
  CHECK(chosen_at(0, slow).peer_tokens == 40 * 256);
  CHECK(chosen_at(1, slow).peer_tokens == 0);
}

TEST_CASE("rates of the pool are learned by tier") {
  Cost c = cost();
  const auto ms_of = [&](uint64_t tokens, double bytes_per_s) {
    return Cost::kPoolRoundTripMs +
           1e3 * static_cast<double>(tokens * c.spec().kv_bytes_per_token()) / bytes_per_s;
  };
  for (int i = 0; i < 30; ++i) c.learn_pool(15'000, 0, ms_of(15'000, 8e9));
  CHECK(c.pool_bytes_per_s(false) == doctest::Approx(8e9).epsilon(0.01));
  CHECK(c.pool_bytes_per_s(true) == Cost::kPoolDiskBytes);
  for (int i = 0; i < 30; ++i)
    c.learn_pool(5'000, 10'000, ms_of(5'000, 8e9) + ms_of(10'000, 1e8) - Cost::kPoolRoundTripMs);
  CHECK(c.pool_bytes_per_s(true) == doctest::Approx(1e8).epsilon(0.01));
  CHECK(c.pool_bytes_per_s(false) == doctest::Approx(8e9).epsilon(0.01));
  c.learn_pool(10, 0, 1e9);  // too little says nothing; nor does what is no number
  c.learn_pool(15'000, 0, -5);
  c.learn_pool(15'000, 0, std::numeric_limits<double>::quiet_NaN());
  CHECK(c.pool_bytes_per_s(false) == doctest::Approx(8e9).epsilon(0.01));
  CHECK(c.pool_ms(0, 0) == 0);
}

TEST_CASE("the pool's memory starts at the model's bandwidth, and slower rates are believed") {
  cost::ModelSpec spec = cost::tiny();
  spec.cost.transfer_bytes_per_s = 80e9;
  Cost c(spec);
  CHECK(c.pool_bytes_per_s(false) == 80e9);
  CHECK(c.pool_bytes_per_s(true) == Cost::kPoolDiskBytes);
  const double ms = 1e3 * static_cast<double>(15'000 * spec.kv_bytes_per_token()) / 0.1e9;
  for (int i = 0; i < 40; ++i) c.learn_pool(15'000, 0, Cost::kPoolRoundTripMs + ms);
  CHECK(c.pool_bytes_per_s(false) == doctest::Approx(0.1e9).epsilon(0.02));
  c.advance(Time{} + 1s);
  c.advance(Time{} + 1h);
  CHECK(c.pool_bytes_per_s(false) == doctest::Approx(80e9));
  spec.cost.transfer_bytes_per_s = 100e6;
  CHECK(Cost(spec).pool_bytes_per_s(true) == 100e6);  // over the same network
}

TEST_CASE("rates of the pool are learned by node, too, and fade to those of all") {
  Cost c = cost();
  const auto ms_of = [&](const PoolPlace& at) { return 1e5 * c.pool_token_ms(at); };
  const PoolPlace one{PoolTier::kMemory, 1}, two{PoolTier::kMemory, 2}, disk{PoolTier::kDisk, 2};
  c.advance(Time(1s));
  CHECK(ms_of(one) == ms_of(two));
  for (int i = 0; i < 40; ++i) c.learn_pool({{one, 100'000}}, 21);
  CHECK(ms_of(one) == doctest::Approx(20).epsilon(0.01));
  CHECK(ms_of(two) == doctest::Approx(20).epsilon(0.01));  // as fast as the others
  for (int i = 0; i < 40; ++i) c.learn_pool({{two, 100'000}}, 201);
  CHECK(ms_of(one) == doctest::Approx(20).epsilon(0.01));
  CHECK(ms_of(two) == doctest::Approx(200).epsilon(0.01));
  CHECK(ms_of(disk) > 200);  // its disk is another thing: as at the start
  // Fetches from both teach both, by what each takes of them.
  for (int i = 0; i < 60; ++i) {
    c.learn_pool({{one, 90'000}, {two, 10'000}}, 1 + 0.9 * 40 + 0.1 * 100);
    c.learn_pool({{one, 10'000}, {two, 90'000}}, 1 + 0.1 * 40 + 0.9 * 100);
  }
  CHECK(ms_of(one) == doctest::Approx(40).epsilon(0.1));
  CHECK(ms_of(two) == doctest::Approx(100).epsilon(0.1));
  c.advance(Time(61s));
  CHECK(ms_of(one) > 41);
  c.advance(Time(1000s));
  CHECK(c.pool_holders().all().empty());
  CHECK(ms_of(one) == ms_of(two));
  for (uint16_t n = 1; n <= 300; ++n) c.learn_pool({{{PoolTier::kMemory, n}, 100'000}}, 21);
  CHECK(c.pool_holders().all().size() == HolderRates::kPlacesMax);
}

}  // namespace policy_test
