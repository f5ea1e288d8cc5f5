// Prefill workers that share KV through a store, with real sockets and bytes.
#include "pool.h"

namespace mc::serve {
namespace {

uint64_t counted(Metrics& metrics, const char* name) { return metrics.counter(name, "").value(); }

// A pool that failed: counts the calls, and refuses all.
class Gone : public KvPool {
 public:
  Gone(io::Loop& loop, size_t& asked) : loop_(loop), asked_(asked) {}
  void match_prefix(std::vector<ObjectKey>, Done<Result<uint64_t>> done) override {
    ++asked_;
    loop_.post([done = std::move(done)] { done(fail(Code::kUnavailable, "gone")); });
  }
  void get_batch(std::vector<store::GetItem> items, Done<Got> done) override {
    refuse(items.size(), std::move(done));
  }
  void put_batch(std::vector<store::PutItem> items, store::PutAs, Done<Put> done) override {
    refuse(items.size(), std::move(done));
  }
  void prefetch(std::vector<ObjectKey>) override {}

 private:
  template <class Each>
  void refuse(size_t n, Done<std::vector<Result<Each>>> done) {
    loop_.post([n, done = std::move(done)] {
      done(std::vector<Result<Each>>(n, fail(Code::kUnavailable, "gone")));
    });
  }
  io::Loop& loop_;
  size_t& asked_;
};

// A pool with some blocks in memory and the next on a disk: counts what is fetched. How
// blocks fail, if they do, is in `ends`.
class Mixed final : public Gone {
 public:
  using Ends = std::vector<std::optional<Code>>;
  Mixed(io::Loop& loop, size_t& asked, size_t& got, std::vector<store::StoredPlace> places,
        Ends ends = {})
      : Gone(loop, asked),
        on_(loop),
        got_(got),
        places_(std::move(places)),
        ends_(std::move(ends)) {}
  void match_places(std::vector<ObjectKey>, Done<Places> done) override {
    on_.post([this, done = std::move(done)] { done(places_); });
  }
  void get_batch(std::vector<store::GetItem> items, Done<Got> done) override {
    got_ = items.size();
    Got sizes;
    for (const auto& item : items) {
      uint64_t bytes = 0;
      for (const auto& part : item.parts) bytes += part.size();
      if (const size_t i = sizes.size(); i < ends_.size() && ends_[i])
        sizes.push_back(fail(*ends_[i], "the pool says no"));
      else
        sizes.emplace_back(bytes);
    }
    on_.post([sizes, done = std::move(done)] { done(sizes); });
  }

 private:
  io::Loop& on_;
  size_t& got_;
  const std::vector<store::StoredPlace> places_;
  const Ends ends_;
};

// One with a block, that says so when the test lets it.
class Held final : public Gone {
 public:
  using Answers = std::vector<std::function<void()>>;
  Held(io::Loop& loop, size_t& asked, size_t& got, Answers& answers)
      : Gone(loop, asked),
        has_(loop, asked, got, {{store::StoredAt::kMemory}}),
        answers_(answers) {}
  void match_places(std::vector<ObjectKey> keys, Done<Places> done) override {
    answers_.push_back(
        [this, keys = std::move(keys), done = std::move(done)] { has_.match_places(keys, done); });
  }
  void get_batch(std::vector<store::GetItem> items, Done<Got> done) override {
    has_.get_batch(std::move(items), std::move(done));
  }

 private:
  Mixed has_;
  Answers& answers_;
};

// A pool whose puts are answered when the test says so.
class Slow final : public Gone {
 public:
  using Waiting = std::vector<std::function<void()>>;
  Slow(io::Loop& loop, size_t& asked, Waiting& waiting) : Gone(loop, asked), waiting_(waiting) {}
  void put_batch(std::vector<store::PutItem> items, store::PutAs as, Done<Put> done) override {
    waiting_.push_back([this, items = std::move(items), as, done = std::move(done)] {
      Gone::put_batch(items, as, done);
    });
  }

 private:
  Waiting& waiting_;
};

TEST_CASE("a worker fetches what another computed from the pool, and decode verifies") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  options.store_timeout = 20s * kSlow;  // a put that is late is dropped
  Pair one(loop, options, "1"), two(loop, options, "2");
  const auto prompt = prompt_of(100, 1);
  CHECK(one.serve("a", prompt, 20).cached_tokens == 0);
  REQUIRE(published(one, 6));
  const auto done = two.serve("b", prompt, 20);
  CHECK(done.cached_tokens == 96);
  CHECK(done.pool_tokens == 96);
  CHECK(one.answers["a"].tokens == two.answers["b"].tokens);
  // Now it is cached here as well, and nothing is put twice.
  const auto again = two.serve("c", prompt, 20);
  CHECK(again.cached_tokens == 96);
  CHECK(again.pool_tokens == 0);
  // Local blocks first, then those of the pool, then computing.
  auto longer = prompt;
  const auto tail = prompt_of(60, 2);
  longer.insert(longer.end(), tail.begin(), tail.end());
  CHECK(one.serve("d", longer).cached_tokens == 96);
  REQUIRE(published(one, 10));
  const auto tail2 = prompt_of(30, 3);
  longer.insert(longer.end(), tail2.begin(), tail2.end());
  const auto mixed = two.serve("e", longer);
  CHECK(mixed.cached_tokens == 160);
  CHECK(mixed.pool_tokens == 64);
  CHECK(counted(two.d_metrics, "mc_engine_kv_errors_total") == 0);
  CHECK(one.comes_to_rest());
  CHECK(two.comes_to_rest());
}

TEST_CASE("blocks of another tenant or model are never fetched") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  Pair pair(loop, options);
  const auto prompt = prompt_of(64, 1);
  pair.serve("a", prompt);
  REQUIRE(published(pair, 4));
  CHECK(pool_key("tiny", chain_hashes(prompt, kBlock)[0]) !=
        pool_key("tiny", chain_hashes(prompt, kBlock, "tenant")[0]));
  CHECK(pool_key("tiny", {}) ==
        "tiny@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@" + std::string(64, '0'));
  CHECK(pool_key("tiny", {}) != pool_key("llama", {}));
}

TEST_CASE("fetching that is predicted slower than computing is left out") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  options.pool_reuse = "auto";
  options.time_scale = 0;  // computing costs nothing
  Pair one(loop, options, "1"), two(loop, options, "2");
  options.time_scale = 500;  // and here much
  Pair slow(loop, options, "3");
  const auto prompt = prompt_of(100, 1);
  one.serve("a", prompt);
  REQUIRE(published(one, 6));
  CHECK(two.serve("b", prompt).cached_tokens == 0);
  CHECK(slow.serve("c", prompt, 1).pool_tokens == 96);
  cost::ModelSpec spec = cost::tiny();
  spec.cost.c0 = spec.cost.t0 = 0;
  spec.cost.transfer_bytes_per_s = 1e3;  // a second a token, which nobody has measured yet
  const DummyEngine engine(spec, kBlock);
  options.prefill_engine = options.decode_engine = &engine;
  Pair far(loop, options, "4");
  CHECK(far.serve("d", prompt, 1).pool_tokens == 0);
}

TEST_CASE("an unreachable pool costs a bounded time, and no request") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.master = "127.0.0.1:1";
  Pair pair(loop, options);
  pair.serve("a", prompt_of(100, 1));
  pair.serve("b", prompt_of(100, 2));
  CHECK(pair.until([&] { return counted(pair.p_metrics, "mc_engine_pool_failures_total") > 0; }));
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a fetch is of the blocks that are chosen by where they are") {
  SteadyClock clock;
  io::Loop loop(clock);
  size_t asked = 0, got = 0;
  const std::vector<store::StoredPlace> places{
      {store::StoredAt::kHost}, {store::StoredAt::kMemory}, {store::StoredAt::kDisk, 7}};
  Metrics metrics;
  BlockManager blocks(8, kBlock, 1);
  const KvShape shape = KvShape::of(cost::tiny(), kBlock, 1);
  const auto engine = xfer::Engine::open(clock, {}, metrics);
  REQUIRE(engine);
  const auto connector =
      StoreConnector::open(loop, **engine, {}, "tiny", blocks, metrics, shape, 0,
                           [&](io::Loop& on, auto&&...) -> Result<std::unique_ptr<KvPool>> {
                             return std::make_unique<Mixed>(on, asked, got, places);
                           });
  REQUIRE(connector);
  const size_t bytes = shape.block_bytes;
  std::vector<std::byte> memory(4 * bytes);
  for (const bool choose : {true, false}) {
    StoreConnector::Wanted wanted;
    wanted.hashes.resize(4);
    for (size_t i = 0; i < 4; ++i)
      wanted.memory.push_back(std::span(memory).subspan(i * bytes, bytes));
    if (choose)
      wanted.choose = [&](std::span<const store::StoredPlace> found) {
        CHECK(std::equal(found.begin(), found.end(), places.begin(), places.end()));
        return size_t{2};  // what is in memory
      };
    size_t fetched = 9;
    (*connector)->fetch(std::move(wanted), [&](size_t n) { fetched = n; });
    for (int i = 0; i < 1000 && fetched == 9; ++i) REQUIRE(loop.turn(10ms));
    CHECK(fetched == (choose ? 2 : 3));
    CHECK(got == fetched);
  }
}

TEST_CASE("an answer of the pool that lies unread behind a step of the loop is used") {
  ManualClock clock;
  const SteadyClock of_threads;
  io::Loop loop(clock);
  size_t asked = 0, got = 0;
  Metrics metrics;
  BlockManager blocks(8, kBlock, 1);
  const KvShape shape = KvShape::of(cost::tiny(), kBlock, 1);
  const auto engine = xfer::Engine::open(of_threads, {}, metrics);
  REQUIRE(engine);
  std::vector<std::function<void()>> answers;
  const auto connector =
      StoreConnector::open(loop, **engine, {}, "tiny", blocks, metrics, shape, 0,
                           [&](io::Loop& on, auto&&...) -> Result<std::unique_ptr<KvPool>> {
                             return std::make_unique<Held>(on, asked, got, answers);
                           });
  REQUIRE(connector);
  std::vector<std::byte> memory(shape.block_bytes);
  const auto fetch = [&](Duration stands_still, Duration then) {
    answers.clear();
    StoreConnector::Wanted wanted;
    wanted.hashes.resize(1);
    wanted.memory.emplace_back(memory);
    std::optional<size_t> fetched;
    (*connector)->fetch(std::move(wanted), [&](size_t n) { fetched = n; });
    REQUIRE(answers.size() == 1);
    clock.advance(stands_still);
    REQUIRE(loop.turn(Duration{}));
    clock.advance(then);
    REQUIRE(loop.turn(Duration{}));
    answers[0]();
    for (int i = 0; i < 10 && !fetched; ++i) REQUIRE(loop.turn(Duration{}));
    REQUIRE(fetched);
    return *fetched;
  };
  CHECK(fetch(999ms, 0ms) == 1);
  CHECK(fetch(1s, 0ms) == 0);  // it was late, and the loop was not
  CHECK(fetch(1200ms, 0ms) == 0);
  CHECK(fetch(1201ms, 0ms) == 1);
  CHECK(fetch(3s, 999ms) == 1);
  CHECK(fetch(3s, 1s) == 0);
}

TEST_CASE("a fetch's time is charged to all blocks that came, and to none where a node failed") {
  const store::StoredPlace first{store::StoredAt::kMemory, 1}, second{store::StoredAt::kMemory, 2};
  Mixed::Ends ends;
  bool layers = false;
  size_t whole = 0;
  bool learned = true;
  SUBCASE("all came") { whole = 4; }
  SUBCASE("all came, layer by layer") {
    whole = 4;
    layers = true;
  }
  SUBCASE("the second node failed") {
    ends = {{}, {}, Code::kTimeout, Code::kTimeout};
    whole = 2;
    learned = false;
  }
  SUBCASE("the first was evicted") { ends = {Code::kNotFound}; }
  SUBCASE("the first was evicted, and the second node failed") {
    ends = {Code::kNotFound, {}, Code::kTimeout, {}};
    learned = false;
  }
  CAPTURE(whole);
  CAPTURE(learned);
  SteadyClock clock;
  io::Loop loop(clock);
  size_t asked = 0, got = 0;
  Metrics metrics;
  BlockManager blocks(8, kBlock, 1);
  const KvShape shape = KvShape::of(cost::tiny(), kBlock, 1);
  const auto engine = xfer::Engine::open(clock, {}, metrics);
  REQUIRE(engine);
  const auto connector =
      StoreConnector::open(loop, **engine, {}, "tiny", blocks, metrics, shape, 0,
                           [&](io::Loop& on, auto&&...) -> Result<std::unique_ptr<KvPool>> {
                             return std::make_unique<Mixed>(
                                 on, asked, got, std::vector{first, first, second, second}, ends);
                           });
  REQUIRE(connector);
  const PoolRates& rates = (*connector)->rates();
  const double before = rates.bytes_per_s(first);
  const size_t bytes = shape.block_bytes;
  std::vector<std::byte> memory(4 * bytes);
  StoreConnector::Wanted wanted;
  wanted.hashes.resize(4);
  for (size_t i = 0; i < 4; ++i)
    wanted.memory.push_back(std::span(memory).subspan(i * bytes, bytes));
  if (layers) wanted.layers_arrived = [](uint32_t) {};
  size_t fetched = 9;
  (*connector)->fetch(std::move(wanted), [&](size_t n) { fetched = n; });
  for (int i = 0; i < 1000 && fetched == 9; ++i) REQUIRE(loop.turn(10ms));
  CHECK(fetched == whole);
  CHECK((rates.bytes_per_s(first) != before) == learned);
  CHECK((rates.bytes_per_s(second) != before) == learned);
  CHECK((*connector)->last_error().empty() == learned);
}

TEST_CASE("a pool that failed gets one call a second at most") {
  SteadyClock clock;
  io::Loop loop(clock);
  size_t asked = 0;
  PairOptions options;
  options.master = "127.0.0.1:1";
  options.pool = [&](io::Loop& on, auto&&...) -> Result<std::unique_ptr<KvPool>> {
    return std::make_unique<Gone>(on, asked);
  };
  Pair pair(loop, options);
  const Time begin = clock.now();
  for (uint64_t i = 0; i < 12; ++i) pair.serve("r" + std::to_string(i), prompt_of(100, 1 + i));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(clock.now() - begin).count();
  CHECK(asked >= 1);
  CHECK(asked <= 1 + static_cast<size_t>(seconds));
  CHECK(pair.comes_to_rest());
}

TEST_CASE("publishing releases its blocks when requests need room") {
  SteadyClock clock;
  io::Loop loop(clock);
  size_t asked = 0;
  Slow::Waiting waiting;
  PairOptions options;
  options.master = "127.0.0.1:1";
  options.pool = [&](io::Loop& on, auto&&...) -> Result<std::unique_ptr<KvPool>> {
    return std::make_unique<Slow>(on, asked, waiting);
  };
  options.pool_reuse = "never";
  options.prefill_blocks = 160;
  options.decode_blocks = 200;
  Pair pair(loop, options);
  pair.serve("a", prompt_of(150 * kBlock, 1));      // 150 blocks, 64 of them being put
  CHECK(pair.prefill->cache().counts().used > 70);  // or the second needs no shedding
  pair.serve("b", prompt_of(90 * kBlock, 2));
  CHECK(counted(pair.p_metrics, "mc_engine_pool_blocks_dropped_total") > 0);
  CHECK(pair.until([&] {
    for (const auto& answer : std::exchange(waiting, {})) answer();
    return pair.prefill->cache().counts().used == 0;
  }));
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a small pool evicts and everything still verifies") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 1 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  options.prefill_blocks = 12;
  Pair one(loop, options, "1"), two(loop, options, "2");
  Random random(5);
  for (int i = 0; i < 40; ++i) {
    CAPTURE(i);
    const auto prompt = prompt_of(20 + 10 * random.below(12), 1 + random.below(6));
    Pair& pair = random.chance(0.5) ? one : two;
    // A put that is under way holds its blocks, and a request that lacks them is to retry later.
    REQUIRE(pair.until([&] { return pair.prefill->cache().counts().used == 0; }));
    pair.serve("r" + std::to_string(i), prompt);
  }
  CHECK(counted(one.d_metrics, "mc_engine_kv_errors_total") == 0);
  CHECK(counted(two.d_metrics, "mc_engine_kv_errors_total") == 0);
  CHECK(one.comes_to_rest());
  CHECK(two.comes_to_rest());
}

}  // namespace
}  // namespace mc::serve
