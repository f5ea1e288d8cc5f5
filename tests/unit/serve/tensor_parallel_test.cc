// Workers of different tensor parallelism give the tokens of one process.
// This holds for every connector, and for KV that is computed, reused, or from any worker in the
// pool.
#include <algorithm>
#include <optional>

#include "pool.h"
#include "serve/connector/kv_shape.h"
#include "small_engine.h"
#include "tests/slow.h"

namespace mc::serve {
namespace tensor_parallel_test {
namespace {

model::ModelConfig four_heads() {
  model::ModelConfig c = small();
  c.kv_heads = 4;
  return c;
}

CpuEngine engine_of(uint32_t ranks, model::KvFormat format = model::DType::kF32) {
  auto threads = std::make_unique<model::ThreadPool>(2);
  auto weights = model::random_weights(four_heads(), 3, model::DType::kF32, *threads);
  const model::KvLayout kv{format, kBlock, 0, ranks};
  return {model::spec_of(four_heads(), kv.type), four_heads(),      std::move(weights), kv,
          *model::kernels_named("plain"),        std::move(threads)};
}

struct Ranks {
  uint32_t p, d;  // of the prefill worker, of the decode worker
};
constexpr Ranks kRanks[] = {{2, 1}, {4, 1}, {2, 2}, {4, 2}, {1, 4}};

TEST_CASE("a block of several ranks has each rank's heads together, and the plain block's bytes") {
  const auto prompt = small_prompt(kBlock, 1);
  const auto written = [&](const CpuEngine& engine) {
    std::vector<std::byte> block(engine.spec().block_bytes(kBlock));
    std::byte* const at = block.data();
    const BlockHash parent;
    engine.write({{prompt, {&parent, 1}, {&at, 1}}, 0, kBlock});
    return block;
  };
  for (const model::KvFormat format :
       {model::KvFormat(model::DType::kF32), model::KvFormat::q8()}) {
    CAPTURE(name(format));
    const auto plain = written(engine_of(1, format));
    for (const uint32_t ranks : {2u, 4u}) {
      CAPTURE(ranks);
      const CpuEngine engine = engine_of(ranks, format);
      const auto block = written(engine);
      const KvShape shape = KvShape::of(engine.spec(), kBlock, ranks);
      std::vector<std::byte> joined;
      for (const auto& part : plain_parts(std::span(block), shape))
        joined.insert(joined.end(), part.begin(), part.end());
      CHECK(joined == plain);
      CHECK(block != plain);
      // The first rank has the first heads of the first layer's keys, then of its values.
      const size_t heads = 4 / ranks * shape.head_bytes;
      CHECK(
          std::equal(block.begin(), block.begin() + static_cast<ptrdiff_t>(heads), plain.begin()));
      CHECK(std::equal(block.begin() + static_cast<ptrdiff_t>(heads),
                       block.begin() + static_cast<ptrdiff_t>(2 * heads),
                       plain.begin() + static_cast<ptrdiff_t>(4 * shape.head_bytes)));
    }
  }
}

TEST_CASE("every connector splits heads among ranks, with the tokens of one process") {
  SteadyClock clock;
  const CpuEngine one = engine_of(1);
  std::map<size_t, std::vector<int32_t>> want;
  for (const size_t n : {5u, 70u, 130u}) want[n] = alone(one, small_prompt(n, n), 12, kGreedy);
  for (const Ranks& ranks : std::span(kRanks).last(enough_for_races(std::size(kRanks), 2))) {
    const CpuEngine of_p = engine_of(ranks.p), of_d = engine_of(ranks.d);
    for (const Way& way : kWays) {
      CAPTURE(ranks.p);
      CAPTURE(ranks.d);
      CAPTURE(way.name);
      io::Loop loop(clock);
      Store store(loop, 16 * kMiB);
      PairOptions options;
      options.connector = way.connector;
      options.layerwise = way.layerwise;
      options.master = store.master->control();
      options.transports = {way.layerwise ? "shm" : "tcp"};
      options.prefill_engine = &of_p;
      options.decode_engine = &of_d;
      Pair pair(loop, options);
      int serial = 0;
      for (const size_t n : {5u, 70u, 130u, 130u}) {  // the last one's blocks are there
        CAPTURE(n);
        const std::string id = std::to_string(++serial);
        const PrefillDone done = pair.serve(id, small_prompt(n, n), 12);
        CHECK(pair.answers[id].tokens == want[n]);
        CHECK((done.cached_tokens > 0) == (serial == 4));
      }
      CHECK(pair.comes_to_rest());
    }
  }
}

TEST_CASE("workers fetch pool blocks that workers of other ranks put") {
  SteadyClock clock;
  const CpuEngine one = engine_of(1);
  const auto prompt = small_prompt(130, 1);
  const auto want = alone(one, prompt, 12, kGreedy);
  io::Loop loop(clock);
  Store store(loop, 16 * kMiB);
  bool first = true;
  for (const uint32_t ranks : {2u, 1u, 4u}) {
    CAPTURE(ranks);
    const CpuEngine of_p = engine_of(ranks), of_d = engine_of(ranks == 1 ? 2 : 1);
    PairOptions options;
    options.master = store.master->control();
    options.prefill_engine = &of_p;
    options.decode_engine = &of_d;
    Pair pair(loop, options, std::to_string(ranks));
    const PrefillDone done = pair.serve("a", prompt, 12);
    CHECK(pair.answers["a"].tokens == want);
    CHECK((done.pool_tokens == 128) == !first);
    first = false;
    CHECK(pair.comes_to_rest());
  }
}

TEST_CASE("ranks of other numbers give the same tokens, with evicted blocks and failed transfers") {
  SteadyClock clock;
  const CpuEngine one = engine_of(1), two = engine_of(2);
  io::Loop loop(clock);
  Store store(loop, 1 * kMiB);  // 40 blocks
  PairOptions options;
  options.connector = Connector::kPool;
  options.master = store.master->control();
  options.prefill_blocks = 12;
  options.prefill_engine = &two;
  options.decode_engine = &one;
  options.faults = R"({"transport": "shm", "error": "completion", "share": 0.4})";
  Pair pair(loop, options);
  serve_twice(pair, one, {130u, 131u, 132u, 133u, 134u, 135u, 70u});
  CHECK(pair.failed_slices() > 0);
}

TEST_CASE("a worker reads the prefix that a worker of other ranks pinned") {
  SteadyClock clock;
  const CpuEngine one = engine_of(1), two = engine_of(2), four = engine_of(4);
  const auto prompt = small_prompt(130, 1);
  const auto want = alone(one, prompt, 12, kGreedy);
  io::Loop loop(clock);
  PairOptions options;
  options.prefill_engine = &two;
  options.decode_engine = &one;
  Pair a(loop, options, "a");
  options.prefill_engine = &four;
  Pair b(loop, options, "b");
  a.serve("first", prompt, 12);
  TxAllocate pin;
  pin.request = "second";
  pin.prompt = prompt;
  pin.pin_for_peer = 8;
  const auto pinned = a.call(*a.to_p, pin);
  REQUIRE(pinned);
  CHECK(pinned->ranks == 2);
  TxAllocate m;
  m.request = "second";
  m.prompt = prompt;
  m.target = *b.reserve("second", prompt, 12);
  m.remote_prefix = {a.p_server->address(), pinned->tx, pinned->segment, pinned->block_offsets,
                     pinned->ranks};
  const auto tx = b.call(*b.to_p, m);
  REQUIRE(tx);
  const auto done = b.call(*b.to_p, Prefill{tx->tx});
  REQUIRE(done);
  CHECK(done->peer_tokens == 128);
  REQUIRE(b.until([&] { return !b.answers["second"].finish.empty(); }));
  CHECK(b.answers["second"].tokens == want);
  CHECK(b.call(*b.to_p, TxCommit{tx->tx}));
  CHECK(a.comes_to_rest());
  CHECK(b.comes_to_rest());
}

TEST_CASE("ranks that cannot share heads evenly are refused, with ranks that can") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine of_p = engine_of(2), of_d = engine_of(1);
  PairOptions options;
  options.prefill_engine = &of_p;
  options.decode_engine = &of_d;
  Pair pair(loop, options);
  const auto prompt = small_prompt(40, 1);
  auto target = pair.reserve("a", prompt);
  REQUIRE(target);
  CHECK(target->ranks == 1);
  for (const uint32_t ranks : {3u, 8u, 0xffffffffu}) {
    target->ranks = ranks;
    TxAllocate ask;
    ask.request = "a";
    ask.prompt = prompt;
    ask.target = *target;
    const auto refused = pair.call(*pair.to_p, ask);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kInvalid);
    CHECK(refused.error().what.find("--tp") != std::string::npos);
    KvOffer offer;
    offer.request = "a";
    offer.guard = target->guard;
    offer.offsets = {0};
    offer.bytes = of_d.spec().layer_bytes(kBlock);
    offer.ranks = ranks;
    const auto unread = pair.call(*pair.to_d, offer);
    REQUIRE_FALSE(unread);
    CHECK(unread.error().code == Code::kInvalid);
  }
}

TEST_CASE("parts of a layer are not offered to other ranks") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine of_d = engine_of(2);
  PairOptions options;
  options.prefill_engine = options.decode_engine = &of_d;
  Pair pair(loop, options);
  const auto target = pair.reserve("a", small_prompt(40, 1));
  REQUIRE(target);
  for (const uint32_t ranks : {1u, 2u}) {
    KvOffer offer;
    offer.request = "a";
    offer.guard = target->guard;
    offer.offsets = {0};
    offer.at = 1;
    offer.bytes = of_d.spec().layer_bytes(kBlock);
    offer.ranks = ranks;
    const auto unread = pair.call(*pair.to_d, offer);
    REQUIRE_FALSE(unread);
    CHECK(unread.error().code == Code::kInvalid);
  }
}

}  // namespace
}  // namespace tensor_parallel_test
}  // namespace mc::serve
