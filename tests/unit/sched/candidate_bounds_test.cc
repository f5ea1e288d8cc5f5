// Of workers whose rank is a bound, decisions look at those that may be the best.
#include <doctest/doctest.h>

#include <memory>

#include "base/random.h"
#include "cost/model_spec.h"
#include "sched/request/candidate_index.h"

using namespace mc;
using namespace mc::sched;
using namespace std::chrono_literals;

namespace candidate_bounds_test {
namespace {

constexpr size_t kPrefills = 400, kDecodes = 20;
constexpr uint64_t kBlock = 16;

struct Many {
  explicit Many(const std::string& policy) : options{.policy = policy}, list(options, cost) {
    roster.slots_changed(kPrefills);
    for (size_t i = 0; i < kPrefills + kDecodes; ++i) {
      FleetWorker& w = *workers.emplace_back(std::make_unique<FleetWorker>());
      w.prefill = i < kPrefills;
      w.node = (w.prefill ? "p" : "d") + std::to_string(i);
      w.blocks_total = w.blocks_free = 1000;
      if (w.prefill) w.slot = static_cast<PrefixIndex::Slot>(i);
      roster.join(w);
    }
  }
  FleetWorker& prefill(size_t i) { return *roster.find("p" + std::to_string(i)); }
  void unsettle(FleetWorker& w, double times) {
    w.congestion.learn(10, 10 * times, now);
    w.fetches.learn("p1", 10, 10 * times, now);
    w.ledger.correct(0, 500, now);
  }
  Ask ask() const { return {.tokens = tags.size() * kBlock + 5, .block_tokens = kBlock}; }
  std::optional<View> few() {
    return list.pick(roster, index.matches(tags, kPrefills), ask(), {13, {17, 13}}, now);
  }
  View all() const {
    View v;
    const auto match = index.match(tags, kPrefills);
    for (const auto& [node, w] : roster.all())
      if (w->prefill)
        v.prefill.push_back(prefill_view(*w, match[w->slot], 0, 0, 13, now));
      else
        v.decode.push_back(decode_view(*w, {17, 13}));
    return v;
  }

  Cost cost{cost::tiny()};
  PolicyOptions options;
  PrefixIndex index{1 << 16};
  Roster roster;
  std::vector<std::unique_ptr<FleetWorker>> workers;
  CandidateIndex list;
  std::vector<uint64_t> tags = {11, 12, 13, 14, 15, 16};
  Time now{100s};
};

}  // namespace

TEST_CASE(
    "few workers are weighed though many are congested, have slow fetches and were corrected") {
  Many s("kvcache");
  const auto weighed = [&] {
    const auto view = s.few();
    REQUIRE(view);
    return view->prefill.size();
  };
  for (size_t i = 0; i < kPrefills; ++i) s.unsettle(s.prefill(i), 2);
  CHECK(weighed() == kPrefills);  // any of them may be the best
  s.now += 700s;
  CHECK(weighed() == 1);
  for (size_t i = 0; i < kPrefills; i += 2) s.unsettle(s.prefill(i), 2);
  CHECK(weighed() == 2);  // the first one in the order, and the first whose rank is exact
}

TEST_CASE(
    "of workers whose links are all congested few are weighed, and of slow readers none more") {
  Many s("kvcache");
  Random random(5);
  for (size_t i = 0; i < kPrefills; ++i) {
    FleetWorker& w = s.prefill(i);
    w.ledger.charge(i + 1, 1000 * random.uniform(), 100, s.now);
    w.congestion.learn(10, 10 + 30 * random.uniform(), s.now);
    w.fetches.learn("p1", 10, 100, s.now);  // which holds nothing of the prompt
  }
  s.index.add(7, s.tags);
  const auto view = s.few();
  REQUIRE(view);
  CHECK(view->prefill.size() < 30);
  const Decision few = choose(*view, s.ask(), s.options, s.cost);
  const Decision all = choose(s.all(), s.ask(), s.options, s.cost);
  CHECK(few.chosen.name == all.chosen.name);
  CHECK(few.ttft_ms() == all.ttft_ms());
}

TEST_CASE(
    "whatever workers answered and however slow their links are, the decision is that over all") {
  for (const char* policy : {"kvcache", "local", "load", "count", "weighted"}) {
    CAPTURE(policy);
    Random random(7);
    Many s(policy);
    uint64_t job = 0;
    size_t bounded = 0;
    for (int i = 0; i < 400; ++i) {
      CAPTURE(i);
      s.now += Duration(random.below(400'000'000));
      for (uint64_t k = 1 + random.below(60); k > 0; --k) {
        FleetWorker& w = s.prefill(random.below(kPrefills));
        const double times = 1 + 3 * random.uniform();
        const uint64_t what = random.below(10);
        if (what < 4) {
          w.ledger.charge(++job, 50 * random.uniform(), 100, s.now, random.below(400) == 0 ? 1 : 0);
          ++w.requests;
          ++w.assigned;
        } else if (what < 6) {
          w.ledger.finish(1 + random.below(job + 1), s.now);
        } else if (what < 7) {
          w.ledger.correct(job, 60 * random.uniform(), s.now);
        } else if (what < 8) {
          w.congestion.learn(10, 10 * times, s.now);
        } else if (what < 9) {
          w.fetches.learn("p" + std::to_string(random.below(kPrefills)), 10, 10 * times, s.now);
        } else {
          s.index.add(w.slot, std::span(s.tags).first(random.below(7)));
        }
      }
      const auto few = s.few();
      REQUIRE(few);
      bounded += few->prefill.size() < kPrefills / 4 ? 1 : 0;
      const Decision a = choose(*few, s.ask(), s.options, s.cost);
      const Decision b = choose(s.all(), s.ask(), s.options, s.cost);
      REQUIRE(a.verdict == b.verdict);
      CHECK(a.chosen.name == b.chosen.name);
      CHECK(a.ttft_ms() == b.ttft_ms());
      CHECK(a.best_tokens == b.best_tokens);
      CHECK(a.reason == b.reason);
    }
    CHECK(bounded > 100);  // of all, few are weighed
  }
}

}  // namespace candidate_bounds_test
