// A prompt computes while the layers of its prefix come from the pool: shown by the trace, and with
// the tokens of one process, whatever the pool gives, loses or spoils.
#include "serve/prefill/layer_load.h"

#include "base/json.h"
#include "pool.h"
#include "small_engine.h"
#include "thread_ranks.h"

namespace mc::serve {
namespace layer_load_test {
namespace {

// The store's pool, whose reads of layers the test answers.
class HeldReads final : public KvPool {
 public:
  struct Held {
    bool hold = false;
    std::vector<std::function<void(bool good)>> answers;
    size_t reads = 0;
  };
  HeldReads(std::unique_ptr<KvPool> real, Held& held) : real_(std::move(real)), held_(held) {}
  void match_prefix(std::vector<ObjectKey> keys, Done<Result<uint64_t>> done) override {
    real_->match_prefix(std::move(keys), std::move(done));
  }
  void match_places(std::vector<ObjectKey> keys, Done<Places> done) override {
    real_->match_places(std::move(keys), std::move(done));
  }
  void get_batch(std::vector<store::GetItem> items, Done<Got> done) override {
    ++held_.reads;
    real_->get_batch(std::move(items), [this, done = std::move(done)](Got got) {
      if (!held_.hold) return done(std::move(got));
      held_.answers.push_back([got = std::move(got), done](bool good) {
        done(good ? got : Got(got.size(), fail(Code::kUnavailable, "the node is gone")));
      });
    });
  }
  void put_batch(std::vector<store::PutItem> items, store::PutAs as, Done<Put> done) override {
    real_->put_batch(std::move(items), std::move(as), std::move(done));
  }
  void prefetch(std::vector<ObjectKey> keys) override { real_->prefetch(std::move(keys)); }

 private:
  const std::unique_ptr<KvPool> real_;
  Held& held_;
};

std::vector<Json> spans_of(const TraceEvents& trace, const std::string& track) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("mc-layers-" + std::to_string(::getpid()));
  REQUIRE(trace.write(path, "p"));
  const auto all = read_json_file(path);
  std::filesystem::remove(path);
  REQUIRE(all);
  std::vector<Json> spans;
  for (const Json& e : all->at("traceEvents"))
    if (e.at("ph") == "X" && e.at("cat") == track) spans.push_back(e);
  return spans;
}

// Counts what it computes. The first layer of a prefix that is computed anew ends the load.
class CountingEngine final : public Engine {
 public:
  CountingEngine() { spec_.layers = 4; }
  const cost::ModelSpec& spec() const override { return spec_; }
  uint32_t block_tokens() const override { return kBlock; }
  bool ends_answer(int32_t) const override { return false; }
  bool modelled_time() const override { return false; }
  void prefill_layer(const ChunkView&, uint32_t, Activations&) const override {
    ++computed;
    if (load != nullptr) load->cancel();
  }
  uint64_t verify(const SequenceView&) const override { return 0; }
  std::vector<int32_t> decode(std::span<const DecodeItem>) const override { return {}; }

  LayerLoad* load = nullptr;
  mutable uint32_t computed = 0;

 private:
  cost::ModelSpec spec_;
};

struct Site {
  Site(const Engine& p, const Engine& d, io::Loop& loop) : store(loop, 16 * kMiB) {
    options.master = store.master->control();
    options.pool_layers = true;
    options.store_timeout = 20s * kSlow;  // a put that is late is dropped
    options.chunk_tokens = 32;
    options.trace = &trace;
    options.prefill_engine = &p;
    options.decode_engine = &d;
    options.pool = [this](io::Loop& on, xfer::Engine& engine, const store::ClientOptions& o,
                          Metrics& metrics, uint32_t calls) -> Result<std::unique_ptr<KvPool>> {
      MC_TRY(auto real, open_store_pool(on, engine, o, metrics, calls));
      return std::make_unique<HeldReads>(std::move(real), held);
    };
  }
  // A worker that begins anew, after one that put the prompt's blocks.
  std::unique_ptr<Pair> fill(io::Loop& loop, const std::vector<int32_t>& prompt) {
    {
      PairOptions filling = options;
      filling.connector = Connector::kMulti;
      Pair first(loop, filling, "1");
      first.serve("a", prompt, 6);
      REQUIRE(first.until([&] {
        return first.p_metrics.counter("mc_engine_pool_blocks_stored_total", "").value() >=
               prompt.size() / kBlock;
      }));
      CHECK(first.comes_to_rest());
    }
    trace = {};
    return std::make_unique<Pair>(loop, options, "2");
  }
  Store store;
  TraceEvents trace;
  HeldReads::Held held;
  PairOptions options;
};

TEST_CASE(
    "F78: layers are computed while later ones load, and the tokens are those of one process") {
  SteadyClock clock;
  const CpuEngine one = make(1, "auto"), p = make(1, "auto"), d = make(1, "auto");
  const auto prompt = small_prompt(100, 1);
  const auto want = alone(one, prompt, 6, kGreedy);
  for (const size_t lost : {9u, 0u, 1u, 2u}) {  // the read that fails; 9: none
    CAPTURE(lost);
    io::Loop loop(clock);
    Site site(p, d, loop);
    const auto pair = site.fill(loop, prompt);
    site.held.hold = true;
    site.held.reads = 0;
    std::optional<Result<PrefillDone>> done;
    const auto target = pair->reserve("b", prompt, 6);
    REQUIRE(target);
    const auto tx = pair->allocate("b", prompt, *target);
    REQUIRE(tx);
    pair->to_p->call<Prefill>(Prefill{tx->tx}, 20s * kSlow,
                              [&](const Result<PrefillDone>& r) { done = r; });
    for (size_t read = 0; read < std::min<size_t>(3, lost + 1); ++read) {  // a layer each
      REQUIRE(pair->until([&] { return site.held.answers.size() == 1; }));
      std::exchange(site.held.answers, {})[0](read != lost);
      if (read >= lost) break;
      if (read > 1) break;
      // The layer is computed before the next one is given.
      REQUIRE(pair->until([&] { return spans_of(site.trace, "compute").size() > read; }));
    }
    REQUIRE(pair->until([&] { return done && !pair->answers["b"].finish.empty(); }));
    REQUIRE_MESSAGE(done->has_value(), done->error().what);
    CHECK(pair->answers["b"].tokens == want);
    CHECK((*done)->pool_tokens == (lost == 9 ? 96 : 0));
    CHECK((*done)->cached_tokens == (lost == 9 ? 96 : 0));  // what is lost is computed
    CHECK(pair->call(*pair->to_p, TxCommit{tx->tx}));
    CHECK(pair->comes_to_rest());
    if (lost < 9) continue;
    CHECK(site.held.reads == 3);
    const auto loads = spans_of(site.trace, "load"), computes = spans_of(site.trace, "compute");
    REQUIRE(loads.size() == 3);
    const auto end = [](const Json& e) {
      return e.at("ts").get<double>() + e.at("dur").get<double>();
    };
    for (size_t layer = 0; layer + 1 < 3; ++layer)
      CHECK(end(computes[layer]) < end(loads[layer + 1]));
  }
}

// The place of a value in the store's node; nothing: it is not stored.
std::optional<uint64_t> stored_at(Pair& pair, Site& site, const ObjectKey& key) {
  auto master = rpc::Client::connect(pair.loop, site.store.master->control());
  REQUIRE(master);
  const auto found = pair.call(**master, store::GetReplicas{{key}, 0, ""});
  // An error: it is not known to be stored, and the master is too young to say that it is not.
  if (!found || !found->items[0].outcome.ok() || found->items[0].places.empty()) return {};
  return found->items[0].places[0].offset;
}

TEST_CASE("a load that is cancelled while its prefix is computed lets no layer be computed") {
  CountingEngine engine;
  const std::vector<int32_t> tokens(2 * kBlock);
  const std::vector<BlockHash> parents(2);
  const std::vector<std::byte*> blocks(2);
  const ChunkView chunk{{tokens, parents, blocks}, kBlock, 2 * kBlock};
  Activations activations;
  SUBCASE("it is not cancelled") {
    LayerLoad load(0, 1);
    load.over(false);
    CHECK(load.await(engine, chunk, 2, activations));
    CHECK(engine.computed == 4 + 2);  // the prefix, and the layers before
    CHECK(load.await(engine, chunk, 3, activations));
    CHECK(engine.computed == 4 + 2);
  }
  SUBCASE("it is") {
    LayerLoad load(0, 1);
    engine.load = &load;
    load.over(false);
    CHECK_FALSE(load.await(engine, chunk, 2, activations));
    CHECK_FALSE(load.await(engine, chunk, 3, activations));
    CHECK(engine.computed == 4);
  }
}

TEST_CASE("layers that are not what was put are found with the last ones, and computed") {
  SteadyClock clock;
  const CpuEngine one = make(1, "auto"), p = make(1, "auto"), d = make(1, "auto");
  const auto prompt = small_prompt(100, 1);
  const auto want = alone(one, prompt, 6, kGreedy);
  const ObjectKey key = pool_key(p.spec().pool_name(), chain_hashes(prompt, kBlock)[2]);
  // False: the machine stood still, and the pool was not waited for.
  const auto tried = [&](const Way& way, uint32_t rotten) {
    io::Loop loop(clock);
    Site site(p, d, loop);
    site.options.connector = way.connector;
    site.options.layerwise = way.layerwise;
    const auto pair = site.fill(loop, prompt);
    const auto at = stored_at(*pair, site, key);
    REQUIRE(at);
    const uint64_t bytes = p.spec().layer_bytes(kBlock);
    const auto first_byte = [&](uint64_t value) {
      return *site.store.node->bytes_at(value + rotten * bytes);
    };
    for (uint64_t i = 0; i < bytes; ++i)
      *site.store.node->bytes_at(*at + rotten * bytes + i) ^= std::byte{0x40};
    const std::byte bad = first_byte(*at);
    site.held.hold = true;
    std::optional<Result<PrefillDone>> done;
    const auto target = pair->reserve("b", prompt, 6);
    REQUIRE(target);
    const auto tx = pair->allocate("b", prompt, *target);
    REQUIRE(tx);
    pair->to_p->call<Prefill>(Prefill{tx->tx}, 20s * kSlow,
                              [&](const Result<PrefillDone>& r) { done = r; });
    for (size_t layer = 0; layer < p.spec().layers; ++layer) {  // each is computed at once
      REQUIRE(pair->until([&] { return done || site.held.answers.size() == 1; }));
      if (done && layer == 0 && pair->stood_still) return false;
      REQUIRE_FALSE(done);
      std::exchange(site.held.answers, {})[0](true);
      if (layer + 1 < p.spec().layers)
        REQUIRE(pair->until([&] { return spans_of(site.trace, "compute").size() > layer; }));
    }
    site.held.hold = false;
    REQUIRE(pair->until([&] { return done && !pair->answers["b"].finish.empty(); }));
    REQUIRE_MESSAGE(done->has_value(), done->error().what);
    CHECK((*done)->pool_tokens == 0);
    CHECK(pair->answers["b"].tokens == want);
    CHECK(pair->call(*pair->to_p, TxCommit{tx->tx}));
    CHECK(pair->comes_to_rest());
    // The store heard of it, and has what was computed instead, or nothing.
    REQUIRE(pair->until([&] {
      const auto now = stored_at(*pair, site, key);
      return !now || first_byte(*now) != bad;
    }));
    return true;
  };
  for (const Way& way : kWays)
    for (uint32_t rotten = 0; rotten < p.spec().layers; ++rotten) {
      CAPTURE(way.name);
      CAPTURE(rotten);
      int times = 0;
      while (!tried(way, rotten)) REQUIRE(++times < 5);
    }
}

TEST_CASE("layers of blocks of several ranks are loaded too, and a worker may end meanwhile") {
  SteadyClock clock;
  model::ModelConfig config = small();
  config.heads = config.kv_heads = 4;
  const auto sources = model::random_sources(config, 3);
  const ThreadRanks p(config, sources, model::DType::kBf16, kBlock, 2);
  const ThreadRanks d(config, sources, model::DType::kBf16, kBlock, 4);
  auto threads = std::make_unique<model::ThreadPool>(1);
  auto weights = model::pack_weights(sources, model::DType::kF32, *threads);
  const CpuEngine one(model::spec_of(config, model::DType::kBf16), config, std::move(weights),
                      {model::DType::kBf16, kBlock}, *model::kernels_named("auto"),
                      std::move(threads));
  io::Loop loop(clock);
  Site site(p.engine(), d.engine(), loop);
  const auto prompt = small_prompt(100, 1);
  auto pair = site.fill(loop, prompt);
  site.held.reads = 0;
  CHECK(pair->serve("b", prompt, 6).pool_tokens == 96);
  CHECK(pair->answers["b"].tokens == alone(one, prompt, 6, kGreedy));
  CHECK(pair->comes_to_rest());
  pair.reset();
  pair = std::make_unique<Pair>(loop, site.options, "3");
  site.held.hold = true;
  const auto target = pair->reserve("c", prompt, 6);
  REQUIRE(target);
  const auto tx = pair->allocate("c", prompt, *target);
  REQUIRE(tx);
  pair->to_p->call<Prefill>(Prefill{tx->tx}, 20s * kSlow, [](const Result<PrefillDone>&) {});
  REQUIRE(pair->until([&] { return site.held.answers.size() == 1; }));
  std::exchange(site.held.answers, {})[0](true);  // it computes, and waits for the second layer
  REQUIRE(pair->until([&] { return site.held.answers.size() == 1; }));
  pair.reset();
}

}  // namespace
}  // namespace layer_load_test
}  // namespace mc::serve
