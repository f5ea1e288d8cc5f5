// Every KV connector between a prefill and a decode worker, with real sockets and bytes.
// It also tests a side that sends wrong messages, dies, or loses the KV.
#include <optional>
#include <set>

#include "gate.h"
#include "pool.h"

namespace mc::serve {
namespace connector_test {
namespace {

uint64_t count(Metrics& metrics, const char* name) { return metrics.counter(name, "").value(); }

PairOptions by(const Way& way, const std::string& master = {}) {
  PairOptions o;
  o.connector = way.connector;
  o.layerwise = way.layerwise;
  o.master = master;
  return o;
}

TEST_CASE("every connector delivers the same KV, computed or reused, and it verifies") {
  SteadyClock clock;
  std::map<std::string, std::vector<int32_t>> want;
  for (const char* transport : {"shm", "tcp"})
    for (const Way& way : kWays) {
      CAPTURE(transport);
      CAPTURE(way.name);
      io::Loop loop(clock);
      Store store(loop, 64 * kMiB);
      PairOptions options = by(way, store.master->control());
      options.transports = {transport};
      Pair pair(loop, options);
      std::set<size_t> served;
      for (const size_t n : {1u, 16u, 17u, 100u, 100u, 300u}) {
        CAPTURE(n);
        static int serial = 0;
        const std::string id = std::to_string(n) + "-" + std::to_string(++serial);
        const PrefillDone done = pair.serve(id, prompt_of(n, n), 20);
        // Of the prompt that comes again, the decode worker has all but the last block.
        const size_t here = served.insert(n).second ? 0 : n / kBlock;
        CHECK(done.kv_bytes ==
              ((n + kBlock - 1) / kBlock - here) * cost::tiny().block_bytes(kBlock));
        auto& tokens = want.try_emplace(std::to_string(n), pair.answers[id].tokens).first->second;
        CHECK(pair.answers[id].tokens == tokens);
      }
      CHECK(count(pair.d_metrics, "mc_engine_kv_errors_total") == 0);
      CHECK(count(pair.d_metrics, "mc_engine_recomputed_requests_total") == 0);
      const bool pool = way.connector == Connector::kPool;
      // Every block that was not there went that way: 1, 1, 2, 7, 1, 19.
      CHECK(count(pair.d_metrics, "mc_engine_pool_kv_blocks_total") == (pool ? 31 : 0));
      const bool stores = pool || way.connector == Connector::kMulti;
      CHECK(pair.comes_to_rest());
      CHECK((count(pair.p_metrics, "mc_engine_pool_blocks_stored_total") > 0) == stores);
      const uint64_t moved = count(pair.d_metrics, "mc_engine_kv_transfer_bytes_total");
      CHECK((moved > 0) == (way.connector == Connector::kPull));
    }
}

TEST_CASE("without a store the pool connector is refused") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  PrefillConfig config;
  config.blocks = 8;
  config.chunk_tokens = 64;
  config.connector = Connector::kPool;
  config.store.master.clear();
  Metrics metrics;
  auto opened =
      PrefillWorker::open(loop, *pair.d_xfer, *pair.c_server, pair.engine, config, metrics);
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == Code::kInvalid);
  CHECK(opened.error().what.find("--master") != std::string::npos);
  CHECK(connector_named("pull") == Connector::kPull);
  CHECK(connector_named("carrier pigeon").error().code == Code::kInvalid);
}

TEST_CASE("what a prompt waits for its turn is queueing, though the store was asked meanwhile") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options = by(kWays[4], store.master->control());
  options.time_scale = 100;  // computing takes long beside what a busy machine adds
  Pair pair(loop, options);
  std::vector<TxId> txs;
  for (const char* id : {"a", "b"}) {
    const auto prompt = prompt_of(200, txs.size() + 1);
    const auto target = pair.reserve(id, prompt);
    REQUIRE(target);
    const auto tx = pair.allocate(id, prompt, *target);
    REQUIRE(tx);
    txs.push_back(tx->tx);
  }
  std::map<TxId, PrefillDone> done;
  for (const TxId tx : txs)
    pair.to_p->call<Prefill>(Prefill{tx}, 20s, [&, tx](const Result<PrefillDone>& r) {
      REQUIRE(r);
      done[tx] = *r;
    });
  REQUIRE(pair.until([&] { return done.size() == 2; }));
  // The store's answers say which is first.
  const bool in_order = done[txs[0]].queue_ms < done[txs[1]].queue_ms;
  const PrefillDone &first = done[txs[in_order ? 0 : 1]], &second = done[txs[in_order ? 1 : 0]];
  CHECK(second.load_ms < second.fetch_ms + first.prefill_ms / 2);
  CHECK(second.queue_ms + second.fetch_ms > first.prefill_ms / 2);
}

TEST_CASE("blocks that the store refuses are pushed") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop, by(kWays[4], "127.0.0.1:1"));  // nobody there
  pair.serve("a", prompt_of(100, 1));
  pair.serve("b", prompt_of(100, 2));
  CHECK(count(pair.d_metrics, "mc_engine_kv_errors_total") == 0);
  CHECK(count(pair.d_metrics, "mc_engine_pool_kv_blocks_total") == 0);
  CHECK(pair.comes_to_rest());
}

// Sends Reserve, and a KvReady with invented contents.
Result<rpc::Empty> ready(Pair& pair, const std::string& id, const std::vector<int32_t>& prompt,
                         std::vector<uint32_t> pool) {
  const auto target = pair.reserve(id, prompt, 8);
  REQUIRE(target);
  return pair.call(*pair.to_d, KvReady{id, target->guard, std::move(pool)});
}

TEST_CASE("the decode worker computes blocks that the store lost, with the same tokens") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options = by(kWays[4], store.master->control());
  options.decode_blocks = 61;
  Pair pair(loop, options);
  const auto prompt = prompt_of(100, 1);
  pair.serve("a", prompt, 8);
  pair.serve("others", prompt_of(16 * 60, 2), 8);  // the blocks of `a` are here no more
  auto changed = prompt;  // its first three blocks are those of `a`; the others nobody put
  for (size_t i = 50; i < 100; ++i) changed[i] = 7;
  REQUIRE(ready(pair, "b", changed, {0, 1, 2, 3, 4, 5, 6}));
  REQUIRE(pair.until([&] { return !pair.answers["b"].finish.empty(); }));
  CHECK(pair.answers["b"].error == "");
  CHECK(count(pair.d_metrics, "mc_engine_pool_kv_blocks_total") == 7 + 60 + 3);
  CHECK(count(pair.d_metrics, "mc_engine_recomputed_requests_total") == 1);
  pair.serve("c", changed, 8);
  CHECK(pair.answers["b"].tokens == pair.answers["c"].tokens);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("a decode worker without a store refuses pool blocks, and block lists are checked") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  Pair with(loop, by(kWays[4], store.master->control()), "1"), without(loop, {}, "2");
  const auto prompt = prompt_of(40, 1);
  const auto refused = ready(without, "a", prompt, {0});
  CHECK(refused.error().code == Code::kUnsupported);
  CHECK(refused.error().what.find("--master") != std::string::npos);
  CHECK(ready(with, "a", prompt, {3}).error().code == Code::kInvalid);
  CHECK(ready(with, "b", prompt, {1, 1}).error().code == Code::kInvalid);
  CHECK(ready(with, "c", prompt, {2, 0}).error().code == Code::kInvalid);
  for (const char* id : {"a", "b", "c"}) with.abort_both(id);
  without.abort_both("a");
  CHECK(with.comes_to_rest());
  CHECK(without.comes_to_rest());
}

TEST_CASE("late KV is fetched from the store, and what the store lacks is computed") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions options = by(kWays[5], store.master->control());
  options.recompute_after = 1s * kSlow;  // `a` is in time, on a slow machine too
  options.decode_blocks = 7;
  Pair pair(loop, options);
  const auto prompt = prompt_of(100, 1);
  const bool served = (pair.serve("a", prompt, 8), published(pair, 6));
  REQUIRE(served);
  pair.serve("others", prompt_of(100, 2), 8);  // the blocks of `a` are here no more
  REQUIRE(pair.reserve("b", prompt, 8));       // and no prefill worker hears of it
  REQUIRE(pair.until([&] { return !pair.answers["b"].finish.empty(); }));
  CHECK(pair.answers["b"].tokens == pair.answers["a"].tokens);
  CHECK(count(pair.d_metrics, "mc_engine_pool_kv_blocks_total") == 6);
  CHECK(count(pair.d_metrics, "mc_engine_recomputed_requests_total") == 1);
  CHECK(pair.comes_to_rest());
}

// The dummy, whose KV is verified when the test says so.
class SlowToVerify final : public Engine {
 public:
  const cost::ModelSpec& spec() const override { return dummy_.spec(); }
  uint32_t block_tokens() const override { return kBlock; }
  bool ends_answer(int32_t token) const override { return dummy_.ends_answer(token); }
  bool modelled_time() const override { return true; }
  void prefill_layer(const ChunkView& chunk, uint32_t layer, Activations& x) const override {
    dummy_.prefill_layer(chunk, layer, x);
  }
  uint64_t verify(const SequenceView& sequence) const override {
    (void)gate.wait();
    return dummy_.verify(sequence);
  }
  std::vector<int32_t> decode(std::span<const DecodeItem> batch) const override {
    return dummy_.decode(batch);
  }
  mutable Gate gate;

 private:
  DummyEngine dummy_{cost::tiny(), kBlock};
};

TEST_CASE("KV that came in time is not late because others are computed before it is verified") {
  SteadyClock clock;
  io::Loop loop(clock);
  SlowToVerify engine;
  PairOptions options;
  options.decode_engine = &engine;
  options.recompute_after = 100ms * kSlow;
  Pair pair(loop, options);
  loop.after(2 * options.recompute_after, [&] { engine.gate.open(); });
  pair.serve("a", prompt_of(100, 1), 8);
  CHECK(count(pair.d_metrics, "mc_engine_failed_requests_total") == 0);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("KV is late at the earlier of the worker's deadline and the request's") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions own, asked;
  own.kv_deadline = 20ms;
  own.kv_deadline_ms = 1'000'000;
  asked.kv_deadline = 1000s;
  asked.kv_deadline_ms = 20;
  Pair first(loop, own, "1"), second(loop, asked, "2");
  for (Pair* const pair : {&first, &second}) {
    REQUIRE(pair->reserve("a", prompt_of(40, 1)));  // and no prefill worker hears of it
    REQUIRE(pair->until([&] { return !pair->answers["a"].finish.empty(); }));
    CHECK(pair->answers["a"].error == "its KV did not arrive in time");
    CHECK(pair->comes_to_rest());
  }
}

TEST_CASE("a peer that writes over the guard words ends no decode worker") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto open = pair.reserve("open", prompt_of(100, 1));
  REQUIRE(open);
  const xfer::SegmentDescriptor there = pair.d_xfer->describe();
  auto junk = pair.p_xfer->allocate(WorkerCore::kGuardWords * 8);
  REQUIRE(junk);
  std::fill(junk->bytes().begin(), junk->bytes().end(), std::byte{0xff});
  xfer::Request write;
  write.op = xfer::Op::kWrite;
  const auto segment = pair.p_xfer->open_segment(there, pair.d_server->address());
  REQUIRE(segment);
  write.segment = *segment;
  write.local = junk->data();
  write.offset = there.buffers.front().offset;
  write.bytes = junk->size();
  REQUIRE(pair.p_xfer->transfer_sync(write, 10s * kSlow));
  REQUIRE(pair.call(*pair.to_d, Abort{"open", "the test"}));
  pair.serve("next", prompt_of(100, 2));
  CHECK(count(pair.d_metrics, "mc_engine_kv_errors_total") == 0);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("offers that do not fit are refused and read nothing") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pair pair(loop);
  const auto target = pair.reserve("a", prompt_of(40, 1), 8);  // three blocks, one more for tokens
  REQUIRE(target);
  const uint64_t block = cost::tiny().block_bytes(kBlock);
  const auto code = [&](const std::function<void(KvOffer&)>& change) -> std::optional<Code> {
    KvOffer offer{"a", target->guard, pair.p_xfer->describe(), {0, 0, 0}, 0, 0, block};
    change(offer);
    const auto answer = pair.call(*pair.to_d, offer);
    return answer ? std::nullopt : std::optional(answer.error().code);
  };
  CHECK(code([](KvOffer& o) { o.request = "nobody"; }) == Code::kNotFound);
  CHECK(code([](KvOffer& o) { o.guard += 1; }) == Code::kNotFound);
  CHECK(code([](KvOffer& o) { o.offsets.clear(); }) == Code::kInvalid);
  CHECK(code([](KvOffer& o) { o.first = 1; }) == Code::kInvalid);
  CHECK(code([](KvOffer& o) { o.first = UINT64_MAX; }) == Code::kInvalid);
  CHECK(code([](KvOffer& o) { o.bytes = 0; }) == Code::kInvalid);
  CHECK(code([](KvOffer& o) { o.at = 1; }) == Code::kInvalid);
  CHECK(code([](KvOffer& o) { o.at = o.bytes = UINT64_MAX; }) == Code::kInvalid);
  CHECK(code([](KvOffer& o) { o.offsets = {0, 1, UINT64_MAX}; }).has_value());  // outside of P's
  CHECK(code([](KvOffer& o) {
          o.from = {};
          o.from.node = "unknown";
        }) == Code::kStale);
  CHECK_FALSE(code([](KvOffer&) {}));
  pair.abort_both("a");
  CHECK(pair.comes_to_rest());
}

// One side of the pair is killed: the other waits for it in vain, so not for long.
PairOptions short_patience(const Way& way, const Store& store) {
  PairOptions o = by(way, store.master->control());
  o.time_scale = 1;
  o.send_timeout = 100ms * kSlow;
  o.peer_timeout = 50ms * kSlow;
  return o;
}

// Each step waits for time to pass; every other one shows the thread sanitizer what all do.
constexpr int kStepsOn = kThreadSanitizer ? 2 : 1;

// Starts a request and runs the loop for some turns.
void begin(Pair& pair, io::Loop& loop, int step) {
  const auto prompt = prompt_of(500, 11);
  const auto target = pair.reserve("r", prompt, 60);  // longer than the steps
  REQUIRE(target);
  if (step == 0) return;
  const auto tx = pair.allocate("r", prompt, *target, 500);
  REQUIRE(tx);
  if (step == 1) return;
  pair.to_p->call<Prefill>(Prefill{tx->tx}, 5s, [](const Result<PrefillDone>&) {});
  for (int turns = 0; turns < (step - 2) * 5; ++turns) REQUIRE(loop.turn(1ms));
}

TEST_CASE("a prefill worker killed at any step, by any connector, leaves nothing at decode") {
  SteadyClock clock;
  for (const Way& way : kWays)
    for (int step = 0; step < 7; step += kStepsOn) {
      CAPTURE(way.name);
      CAPTURE(step);
      io::Loop loop(clock);
      Store store(loop, 64 * kMiB);
      PairOptions options = short_patience(way, store);
      options.kv_deadline_ms = 100;
      Pair pair(loop, options);
      begin(pair, loop, step);
      pair.prefill.reset();
      pair.p_server.reset();
      pair.p_xfer.reset();
      CHECK(pair.until([&] { return !pair.answers["r"].finish.empty(); }));
      CHECK(pair.until([&] { return pair.decode->idle(); }));
      CHECK(pair.decode->load().blocks_free == pair.decode->load().blocks_total);
      CHECK(count(pair.d_metrics, "mc_engine_kv_errors_total") == 0);
    }
}

TEST_CASE("a decode worker killed at any step, by any connector, leaves nothing at prefill") {
  SteadyClock clock;
  for (const Way& way : kWays)
    for (int step = 1; step < 7; step += kStepsOn) {
      CAPTURE(way.name);
      CAPTURE(step);
      io::Loop loop(clock);
      Store store(loop, 64 * kMiB);
      Pair pair(loop, short_patience(way, store));
      begin(pair, loop, step);
      pair.decode.reset();
      pair.d_server.reset();
      pair.d_xfer.reset();
      CHECK(pair.until(
          [&] { return pair.prefill->idle() && pair.prefill->cache().counts().used == 0; }));
      pair.prefill->cache().check();
    }
}

}  // namespace
}  // namespace connector_test
}  // namespace mc::serve
