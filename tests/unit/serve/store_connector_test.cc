// Prefill workers that share KV through a store, with real sockets and bytes.
#include "pool.h"

namespace mc::serve {
namespace {

uint64_t counted(Metrics& metrics, const char* name) { return metrics.counter(name, "").value(); }

TEST_CASE("what one worker computed, another fetches from the pool and decode verifies") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options;
  options.master = store.master->control();
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
}

TEST_CASE("a pool that is not there costs a while at most, and no request") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.master = "127.0.0.1:1";
  Pair pair(loop, options);
  pair.serve("a", prompt_of(100, 1));
  pair.serve("b", prompt_of(100, 2));
  CHECK(pair.until([&] { return counted(pair.p_metrics, "mc_engine_pool_failures_total") > 0; }));
  CHECK(pair.serve("c", prompt_of(100, 3)).load_ms < 900);  // it is left alone for a while
  CHECK(pair.comes_to_rest());
}

TEST_CASE("publishing gives way when its blocks are needed") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions options;
  options.master = "127.0.0.1:1";  // puts wait for nobody
  options.pool_reuse = "never";
  options.prefill_blocks = 160;
  options.decode_blocks = 200;
  Pair pair(loop, options);
  pair.serve("a", prompt_of(150 * kBlock, 1));      // 150 blocks, 64 of them being put
  CHECK(pair.prefill->cache().counts().used > 70);  // or the second needs no shedding
  pair.serve("b", prompt_of(90 * kBlock, 2));
  CHECK(counted(pair.p_metrics, "mc_engine_pool_blocks_dropped_total") > 0);
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
    pair.serve("r" + std::to_string(i), prompt);
  }
  CHECK(counted(one.d_metrics, "mc_engine_kv_errors_total") == 0);
  CHECK(counted(two.d_metrics, "mc_engine_kv_errors_total") == 0);
  CHECK(one.comes_to_rest());
  CHECK(two.comes_to_rest());
}

}  // namespace
}  // namespace mc::serve
