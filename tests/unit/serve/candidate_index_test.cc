// Decisions among few workers are those among all.
#include "sched/request/candidate_index.h"

#include <doctest/doctest.h>

#include "base/random.h"
#include "cost/model_spec.h"
#include "io/loop.h"
#include "serve/conductor/worker_registry.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::serve;
using sched::CandidateIndex;
using sched::DecodeNeed;
using namespace std::chrono_literals;

namespace candidate_index_test {
namespace {

constexpr uint64_t kBlockTokens = 16;

struct Site {
  // `growing`: out of ten, decode workers whose answers take blocks as they grow.
  Site(const std::string& policy, uint64_t seed, size_t prefills, size_t decodes,
       uint64_t growing = 0)
      : grow(growing), random(seed) {
    options.policy = policy;
    list = std::make_unique<CandidateIndex>(options, cost);
    for (size_t i = 0; i < prefills; ++i) join("p" + std::to_string(i), "prefill");
    for (size_t i = 0; i < decodes; ++i) join("d" + std::to_string(i), "decode");
  }
  void join(const std::string& name, const std::string& role, bool draining = false) {
    Heartbeat beat;
    beat.node = name;
    beat.role = role;
    beat.epoch = 1;
    beat.control = "127.0.0.1:1";
    beat.model = "tiny";
    beat.block_tokens = kBlockTokens;
    beat.fingerprint = cost::tiny().fingerprint(kBlockTokens);
    beat.load.blocks_total = 1000;
    beat.load.blocks_free = 200 + random.below(800);
    if (grow > 0 && role == "decode" && random.below(10) < grow)
      beat.load.growth = 1 + random.below(100);
    beat.draining = draining;
    beat.pool_reuse = random.chance(0.9) ? 1 : 0;
    REQUIRE(workers.heartbeat(beat, now));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  Worker& any() { return *workers.find(names[random.below(names.size())]); }
  // Something happens, as in the life of requests.
  void step() {
    now += Duration(random.below(20'000'000));
    Worker& w = any();
    const uint64_t what = random.below(100);
    if (!w.prefill) {
      w.requests = random.below(6);
      w.context_tokens = 1000 * random.below(8);
      w.reserved_blocks = random.below(100);
    } else if (what < 50) {
      w.ledger.charge(++jobs, 5.0 * static_cast<double>(random.below(8)), 100 * random.below(4),
                      now);
      ++w.requests;
      ++w.assigned;
    } else if (what < 80) {
      w.ledger.finish(1 + random.below(jobs + 1), now);
      w.requests -= w.requests > 0;
    } else if (what < 85) {
      w.ledger.correct(jobs, static_cast<double>(random.below(40)), now);
    } else if (what < 88) {
      w.congestion.learn(1, 1 + static_cast<double>(random.below(3)), now);
      const std::string& from = names[random.below(names.size())];
      if (from != w.node) w.fetches.learn(from, 1, 1 + static_cast<double>(random.below(30)), now);
    } else if (what < 97) {
      for (uint64_t i = 0; i < random.below(12); ++i) index.add(w.slot, tags[i]);
    } else if (what < 99) {
      join(w.node, "prefill", random.chance(0.5));
    } else {
      if (index.retire(w.slot)) index.sweep(SIZE_MAX);
    }
  }
  sched::View all(const sched::Ask& ask, const CandidateIndex::Need& need) const {
    const auto match = index.match(tags, workers.slots());
    sched::View v;
    for (const auto& [node, w] : workers.all())
      if (w->prefill)
        v.prefill.push_back(prefill_view(*w, match[w->slot], 0, 0, need.prefill, now));
      else
        v.decode.push_back(decode_view(*w, need.decode));
    (void)ask;
    v.pool = pool_match();
    return v;
  }
  // As Fleet::weigh_fetches.
  void weigh(sched::View& view) const {
    const auto match = index.match(tags, workers.slots());
    uint32_t longest = 0;
    for (const auto& [node, w] : workers.all())
      if (w->prefill) longest = std::max(longest, match[w->slot]);
    for (sched::PrefillView& v : view.prefill) {
      std::optional<double> least;
      const auto& reader = *workers.all().at(v.name);
      for (const auto& [node, w] : workers.all())
        if (w->prefill && !w->draining && longest > 0 && match[w->slot] == longest &&
            node != v.name)
          least = std::min(least.value_or(1e9), reader.fetches.factor(node, now));
      v.fetch_congestion = least.value_or(1);
    }
  }
  sched::PoolMatch pool_match() const {
    return pool.match(tags, index.matches(tags, workers.slots()).longest());
  }

  const uint64_t grow;
  Random random;
  SteadyClock clock;
  io::Loop loop{clock};
  Metrics metrics;
  sched::PrefixIndex index{100000};
  sched::PoolIndex pool{100000};
  sched::Cost cost{cost::tiny()};
  sched::PolicyOptions options;
  WorkerRegistry workers{
      loop,
      {"tiny", cost::tiny().fingerprint(kBlockTokens), kBlockTokens, 1, 1000s, 1s},
      index,
      metrics};
  std::unique_ptr<CandidateIndex> list;
  std::vector<std::string> names;
  std::vector<uint64_t> tags = [] {
    std::vector<uint64_t> t;
    for (uint64_t i = 0; i < 12; ++i) t.push_back(mix64(i + 1));
    return t;
  }();
  Time now{1s};
  uint64_t jobs = 0;
};

}  // namespace

TEST_CASE("among few workers the same is decided as among all") {
  size_t few = 0, weighed = 0, pooled = 0, slow = 0;
  for (const char* policy : {"kvcache", "local", "load", "count", "weighted"}) {
    CAPTURE(policy);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      Site s(policy, seed, 80, 20, seed == 2 ? 10 : 0);
      for (uint64_t i = 0; i < fewer(400); ++i) {
        CAPTURE(i);
        for (uint64_t k = 0; k < 1 + s.random.below(6); ++k) s.step();
        s.pool.put(s.tags[s.random.below(12)],
                   static_cast<sched::PoolTier>(std::min<uint64_t>(s.random.below(8), 2)));
        const sched::Ask ask{.tokens = 12 * kBlockTokens + s.random.below(2000),
                             .block_tokens = kBlockTokens};
        const uint64_t blocks = (ask.tokens + kBlockTokens - 1) / kBlockTokens;
        const CandidateIndex::Need need{blocks, {blocks + 4, blocks}};
        auto view = s.list->pick(s.workers.roster(), s.index.matches(s.tags, s.workers.slots()),
                                 ask, need, s.now);
        if (!view) continue;
        ++few;
        view->pool = s.pool_match();
        pooled += view->pool.run(0, 1).blocks();
        weighed += view->prefill.size() + view->decode.size();
        sched::View whole = s.all(ask, need);
        s.weigh(*view);
        s.weigh(whole);
        slow += static_cast<size_t>(std::ranges::count_if(
            whole.prefill, [](const auto& v) { return v.fetch_congestion > 1; }));
        const auto a = sched::choose(*view, ask, s.options, s.cost);
        const auto b = sched::choose(whole, ask, s.options, s.cost);
        REQUIRE(a.verdict == b.verdict);
        CHECK(a.chosen.name == b.chosen.name);
        CHECK(a.ttft_ms() == b.ttft_ms());
        CHECK(a.tbt_ms == b.tbt_ms);
        CHECK(a.best_tokens == b.best_tokens);
        CHECK(a.reason == b.reason);
        CHECK(view->decode[a.decode].name == whole.decode[b.decode].name);
      }
    }
  }
  CHECK(few > fewer(5000));
  CHECK(pooled > few / 4);
  CHECK(weighed < few * 50);              // of 100
  if (kSlow == 1) CHECK(slow > few / 4);  // it takes more than a fifth of the cases
}

TEST_CASE("few workers are weighed all, and so are they where a policy draws") {
  Site small("kvcache", 1, 40, 20);
  const sched::Ask ask{.tokens = 100, .block_tokens = kBlockTokens};
  CHECK(!small.list->pick(small.workers.roster(), {}, ask, {}, small.now));
  for (const char* policy : {"random", "rr", "p2c"}) {
    Site draws(policy, 1, 80, 20);
    CHECK(!draws.list->pick(draws.workers.roster(), {}, ask, {}, draws.now));
  }
}

TEST_CASE("who joins and who goes is known at the next decision") {
  Site s("load", 1, 80, 20);
  const sched::Ask ask{.tokens = 100, .block_tokens = kBlockTokens};
  const auto chosen = [&] {
    sched::Matches none;
    none.slots = s.workers.slots();
    const auto view = s.list->pick(s.workers.roster(), none, ask, {7, {7, 7}}, s.now);
    REQUIRE(view);
    return sched::choose(*view, ask, s.options, s.cost).chosen.name;
  };
  for (const auto& name : s.names)
    if (name != "p7" && name[0] == 'p') s.workers.find(name)->ledger.charge(1, 100, 1, s.now);
  CHECK(chosen() == "p7");
  s.workers.find("p7")->ledger.charge(1, 50, 1, s.now);
  s.join("new", "prefill");
  CHECK(chosen() == "new");
  s.join("new", "prefill", true);
  CHECK(chosen() == "p7");
  s.join("p7", "auto");  // gone: it waits for a role
  CHECK(s.workers.find("p7") == nullptr);
  CHECK(chosen() != "p7");
}

TEST_CASE("a worker whose answers grow has room for a prompt and what must stay free") {
  Worker w;
  w.blocks_total = 100;
  w.blocks_free = 30;
  w.reserved_blocks = 5;
  const DecodeNeed need{60, 20};
  CHECK_FALSE(decode_view(w, need).room);
  CHECK(blocks_reserved(w, need) == 60);
  w.growth = 6;
  CHECK(decode_view(w, need).room);
  CHECK(blocks_reserved(w, need) == 20);
  w.growth = 7;
  CHECK_FALSE(decode_view(w, need).room);
  CHECK(decode_view(w, need).usable);
  CHECK_FALSE(decode_view(w, {101, 20}).usable);  // its answer would not fit
}

TEST_CASE("where only some decode workers grow, all are weighed") {
  Site s("kvcache", 1, 80, 20, 5);
  const sched::Ask ask{.tokens = 1000, .block_tokens = 16};
  CHECK_FALSE(s.list->pick(s.workers.roster(), s.index.matches(s.tags, s.workers.slots()), ask,
                           {63, {70, 63}}, s.now));
}

}  // namespace candidate_index_test
