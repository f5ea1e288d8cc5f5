// A pipeline of processes computes the KV and tokens of one process.
// It also tests the activations between stages, and requests when a stage is gone.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/json.h"
#include "pool.h"
#include "serve/pipeline/pipeline_worker.h"
#include "small_engine.h"

namespace mc::serve {
namespace pipeline_test {
namespace {

uint64_t count(Metrics& metrics, const char* name) { return metrics.counter(name, "").value(); }

// One process after the head, on the loop of the test.
struct Stage {
  Stage(io::Loop& loop, const Engine& engine, const PipelineConfig& config,
        const std::string& listen) {
    xfer::EngineOptions o;
    o.node = "stage" + std::to_string(config.stage);
    o.peer_timeout = 200ms * kSlow;
    auto opened = xfer::Engine::open(loop.clock(), o, metrics);
    REQUIRE(opened);
    transfer = std::move(*opened);
    auto served = rpc::Server::open(loop, listen, metrics);
    REQUIRE(served);
    server = std::move(*served);
    auto made = PipelineWorker::open(loop, *transfer, *server, engine, config, metrics);
    REQUIRE_MESSAGE(made, made.error().what);
    worker = std::move(*made);
  }
  Metrics metrics;
  std::unique_ptr<xfer::Engine> transfer;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<PipelineWorker> worker;
};

// A head, stages after it, and a decode worker (pair.h), all with their slices of `whole`.
struct Pipeline {
  using Make = std::function<std::unique_ptr<Engine>(cost::ModelSpec slice)>;
  Pipeline(io::Loop& on, uint32_t stages, const cost::ModelSpec& whole, const Make& make,
           PairOptions options = {}, const std::string& stage_master = {})
      : loop(on) {
    for (uint32_t i = 0; i < stages; ++i)
      engines.push_back(make(*cost::slice_of(whole, i, stages)));
    all = make(whole);
    config.fingerprint = options.fingerprint = whole.fingerprint(kBlock);
    config.blocks = options.prefill_blocks;
    config.time_scale = options.time_scale;
    config.connector = options.connector;
    config.layerwise = options.layerwise;
    config.send_timeout = 1s * kSlow;
    config.patience = 500ms * kSlow;
    config.store.master = stage_master.empty() ? options.master : stage_master;
    config.store.timeout = 1s * kSlow;
    for (uint32_t i = 1; i < stages; ++i) {
      start(i, "127.0.0.1:0");
      options.stages.push_back(after.back()->server->address());
    }
    options.prefill_engine = engines[0].get();
    options.decode_engine = all.get();
    pair = std::make_unique<Pair>(loop, options);
    REQUIRE(begun());
  }
  void start(uint32_t i, const std::string& listen) {
    config.stage = i;
    auto stage = std::make_unique<Stage>(loop, *engines[i], config, listen);
    if (after.size() < i)
      after.push_back(std::move(stage));
    else
      after[i - 1] = std::move(stage);
  }
  bool begun() {
    return pair->until([&] { return pair->prefill->whole(); });
  }
  bool comes_to_rest() {
    return pair->comes_to_rest() && pair->until([&] {
      return std::all_of(after.begin(), after.end(),
                         [](const auto& s) { return s == nullptr || s->worker->idle(); });
    });
  }

  io::Loop& loop;
  PipelineConfig config;
  std::vector<std::unique_ptr<Engine>> engines;
  std::unique_ptr<Engine> all;
  std::vector<std::unique_ptr<Stage>> after;
  std::unique_ptr<Pair> pair;
};

std::unique_ptr<Engine> dummy(cost::ModelSpec slice) {
  return std::make_unique<DummyEngine>(std::move(slice), kBlock);
}

std::unique_ptr<Engine> transformer(cost::ModelSpec slice) {
  auto threads = std::make_unique<model::ThreadPool>(1);
  const model::LayerRange range{slice.first_layer, slice.first_layer + slice.layers};
  auto weights = model::random_weights(small(), 3, model::DType::kF32, *threads, range);
  const uint32_t first = slice.first_layer;
  return std::make_unique<CpuEngine>(std::move(slice), small(), std::move(weights),
                                     model::KvLayout{model::DType::kBf16, kBlock, first},
                                     *model::kernels_named("auto"), std::move(threads));
}

TEST_CASE("a pipeline gives the tokens of one process, with evicted blocks and failed transfers") {
  SteadyClock clock;
  const CpuEngine one = make(1, "auto");
  io::Loop loop(clock);
  Store store(loop, 1 * kMiB);
  PairOptions options;
  options.master = store.master->control();
  options.prefill_blocks = 12;
  options.faults = R"({"transport": "shm", "error": "completion", "share": 0.4})";
  Pipeline pipeline(loop, 3, one.spec(), transformer, options);
  Pair& pair = *pipeline.pair;
  serve_twice(pair, one, {130u, 131u, 132u, 70u});
  CHECK(pair.failed_slices() > 0);
  CHECK(pipeline.comes_to_rest());
}

TEST_CASE("slices of a model have all layers in order, with their share of its times") {
  const cost::ModelSpec whole = cost::tiny();
  for (uint32_t n = 1; n <= whole.layers; ++n) {
    uint32_t next = 0;
    double cost = 0;
    for (uint32_t i = 0; i < n; ++i) {
      const auto s = cost::slice_of(whole, i, n);
      REQUIRE(s);
      CHECK(s->first_layer == next);
      CHECK(s->layers > 0);
      next += s->layers;
      CHECK(next + s->layers_after == whole.layers);
      cost += s->cost.c1;
      CHECK((s->pool_name() == whole.pool_name()) == (n == 1));
    }
    CHECK(next == whole.layers);
    CHECK(cost == doctest::Approx(whole.cost.c1));
  }
  CHECK(cost::slice_of(whole, 0, whole.layers + 1).error().code == Code::kInvalid);
  CHECK(cost::slice_of(whole, 2, 2).error().code == Code::kInvalid);
}

TEST_CASE("activations cross in messages of bounded size, cut at blocks") {
  const uint64_t begin = 3 * kBlock, end = begin + 1000;
  std::vector<float> rows(1000 * 8192);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 1000003);
  const auto parts = pipeline_chunks("r", begin, end, true, rows, kBlock);
  REQUIRE(parts.size() > 3);
  std::string all;
  uint64_t at = begin;
  for (const PipelineChunk& m : parts) {
    CHECK(m.begin == at);
    CHECK(m.rows.bytes.size() <= PipelineChunk::kRowBytesMax);
    CHECK(m.last == (m.end == end));
    CHECK((m.last || m.end % kBlock == 0));
    at = m.end;
    all += m.rows.bytes;
  }
  CHECK(at == end);
  REQUIRE(all.size() == rows.size() * sizeof(float));
  CHECK(std::memcmp(all.data(), rows.data(), all.size()) == 0);
  CHECK(pipeline_chunks("r", 0, 5, false, std::vector<float>(5 * 7), kBlock).size() == 1);
}

TEST_CASE("a pipeline's KV verifies and its tokens are those of one process, by each connector") {
  SteadyClock clock;
  struct Way {
    Connector connector;
    bool layerwise;
  };
  for (const uint32_t stages : {2u, 4u})
    for (const Way way : {Way{Connector::kMulti, true}, Way{Connector::kPush, false},
                          Way{Connector::kPull, true}, Way{Connector::kPool, true}}) {
      CAPTURE(stages);
      CAPTURE(static_cast<int>(way.connector));
      io::Loop loop(clock);
      Store store(loop, 64 * kMiB);
      PairOptions o;
      if (way.connector == Connector::kPool) o.master = store.master->control();
      o.connector = way.connector;
      o.layerwise = way.layerwise;
      Pipeline pipeline(loop, stages, cost::tiny(), dummy, o);
      Pair one(loop, {}, "1");
      std::set<size_t> served;
      for (const size_t n : {1u, 16u, 100u, 300u, 300u}) {
        CAPTURE(n);
        static int serial = 0;
        const std::string id = std::to_string(++serial);
        const auto done = pipeline.pair->serve(id, prompt_of(n, n), 12);
        one.serve(id, prompt_of(n, n), 12);
        CHECK(pipeline.pair->answers[id].tokens == one.answers[id].tokens);
        const size_t here = served.insert(n).second ? 0 : n / kBlock;  // on the decode worker
        CHECK(done.kv_bytes ==
              ((n + kBlock - 1) / kBlock - here) * cost::tiny().block_bytes(kBlock));
      }
      // The last prompt was there before: all its full blocks but the last one's were reused.
      CHECK(count(pipeline.pair->p_metrics, "vllm:prefix_cache_hits_total") >= 288);
      const uint64_t tokens = count(pipeline.pair->p_metrics, "mc_engine_computed_tokens_total");
      for (const auto& stage : pipeline.after) {
        CHECK(count(stage->metrics, "mc_engine_computed_tokens_total") == tokens);
        CHECK(count(stage->metrics, "mc_engine_activation_bytes_total") ==
              tokens * cost::tiny().hidden * sizeof(float));
      }
      CHECK(count(pipeline.pair->d_metrics, "mc_engine_kv_errors_total") == 0);
      CHECK(pipeline.comes_to_rest());
    }
}

TEST_CASE("a transformer in slices gives the tokens of one process") {
  SteadyClock clock;
  io::Loop loop(clock);
  const CpuEngine whole = make(1, "auto");
  for (const uint32_t stages : {2u, 3u}) {
    CAPTURE(stages);
    PairOptions o;
    o.chunk_tokens = 32;
    Pipeline pipeline(loop, stages, whole.spec(), transformer, o);
    int id = 0;
    for (const size_t n : {5u, 150u, 150u, 200u}) {  // the third reuses blocks of the second
      CAPTURE(n);
      const auto prompt = small_prompt(n, 4);
      const std::string name = std::to_string(++id);
      pipeline.pair->serve(name, prompt, 8);
      CHECK(pipeline.pair->answers[name].tokens == alone(whole, prompt, 8, kGreedy));
    }
    CHECK(pipeline.comes_to_rest());
  }
}

TEST_CASE("a pipeline fetches what it put in the KV store, each stage its layers") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 64 * kMiB);
  PairOptions o;
  o.master = store.master->control();
  const auto prompt = prompt_of(20 * kBlock + 3, 5);
  std::vector<int32_t> tokens;
  {
    Pipeline first(loop, 2, cost::tiny(), dummy, o);
    first.pair->serve("a", prompt, 8);
    tokens = first.pair->answers["a"].tokens;
    REQUIRE(published(*first.pair, 20));
    REQUIRE(first.pair->until([&] {
      return count(first.after[0]->metrics, "mc_engine_pool_blocks_stored_total") == 20;
    }));
    CHECK(first.comes_to_rest());
  }
  Pipeline second(loop, 2, cost::tiny(), dummy, o);
  const auto done = second.pair->serve("b", prompt, 8);
  CHECK(done.pool_tokens == 20 * kBlock);
  CHECK(second.pair->answers["b"].tokens == tokens);
  CHECK(count(second.after[0]->metrics, "mc_engine_pool_blocks_fetched_total") == 20);
  CHECK(count(second.after[0]->metrics, "mc_engine_computed_tokens_total") == 3);
  CHECK(count(second.pair->d_metrics, "mc_engine_kv_errors_total") == 0);
  // A worker with all layers finds none of it under its own keys.
  Pair one(loop, o, "1");
  CHECK(one.serve("c", prompt, 8).pool_tokens == 0);
  CHECK(second.comes_to_rest());
}

// The decode worker puts a block together from what the stages put, and what they push instead.
TEST_CASE("a pipeline over the pool gives one process's tokens, with parts that are refused") {
  SteadyClock clock;
  const CpuEngine one = make(1, "auto");
  const std::string nobody = "127.0.0.1:1";
  for (const char* refused : {"none", "a stage's", "all"}) {
    CAPTURE(refused);
    io::Loop loop(clock);
    Store store(loop, 16 * kMiB);
    PairOptions o;
    o.connector = Connector::kPool;
    o.master = refused == std::string("all") ? nobody : store.master->control();
    o.chunk_tokens = 32;
    Pipeline pipeline(loop, 3, one.spec(), transformer, o,
                      refused == std::string("none") ? "" : nobody);
    Pair& pair = *pipeline.pair;
    int id = 0;
    for (const size_t n : {5u, 100u, 100u, 130u}) {
      CAPTURE(n);
      const std::string name = std::to_string(++id);
      pair.serve(name, small_prompt(n, 4), 8);
      CHECK(pair.answers[name].tokens == alone(one, small_prompt(n, 4), 8, kGreedy));
    }
    const uint64_t from_pool = count(pair.d_metrics, "mc_engine_pool_kv_blocks_total");
    CHECK((from_pool > 0) == (refused != std::string("all")));
    CHECK(count(pair.d_metrics, "mc_engine_recomputed_requests_total") == 0);
    CHECK(pipeline.comes_to_rest());
  }
}

TEST_CASE("parts of blocks that the pool lost are computed, and parts that do not fit refused") {
  SteadyClock clock;
  io::Loop loop(clock);
  Store store(loop, 16 * kMiB);
  const CpuEngine one = make(1, "auto");
  PairOptions o;
  o.master = store.master->control();
  o.decode_engine = &one;
  Pair pair(loop, o);
  const auto prompt = small_prompt(40, 1);
  const auto ready = [&](const std::string& id, uint32_t stages, std::vector<PooledPart> parts) {
    const auto target = pair.reserve(id, prompt, 6);
    REQUIRE(target);
    return pair.call(*pair.to_d, KvReady{id, target->guard, {0, 1, 2}, stages, std::move(parts)});
  };
  REQUIRE(ready("a", 3, {{0, {0, 1}}, {1, {0, 1, 2}}, {2, {2}}}));
  REQUIRE(pair.until([&] { return !pair.answers["a"].finish.empty(); }));
  CHECK(pair.answers["a"].tokens == alone(one, prompt, 6, kGreedy));
  CHECK(count(pair.d_metrics, "mc_engine_recomputed_requests_total") == 1);
  CHECK(ready("b", 99, {{0, {0}}}).error().code == Code::kInvalid);
  CHECK(ready("c", 3, {{3, {0}}}).error().code == Code::kInvalid);
  CHECK(ready("d", 3, {{1, {3}}}).error().code == Code::kInvalid);
  CHECK(ready("e", 3, {{1, {1, 1}}}).error().code == Code::kInvalid);
  for (const char* id : {"a", "b", "c", "d", "e"}) pair.abort_both(id);
  CHECK(pair.comes_to_rest());
}

TEST_CASE("chunks of one prompt are in several stages at once") {
  SteadyClock clock;
  io::Loop loop(clock);
  PairOptions o;
  o.chunk_tokens = 16;
  o.time_scale = 1;
  o.prefill_blocks = o.decode_blocks = 128;
  Pipeline pipeline(loop, 2, cost::tiny(), dummy, o);
  const auto prompt = prompt_of(60 * kBlock, 1);
  const auto target = pipeline.pair->reserve("a", prompt);
  REQUIRE(target);
  const auto tx = pipeline.pair->allocate("a", prompt, *target);
  REQUIRE(tx);
  bool answered = false;
  pipeline.pair->to_p->call<Prefill>(Prefill{tx->tx}, 10s, [&](const Result<PrefillDone>& r) {
    CHECK(r);
    answered = true;
  });
  // The stage has a chunk when the next one comes. Without overlap it would have one at most.
  uint64_t most = 0;
  REQUIRE(pipeline.pair->until([&] {
    most = std::max(most, pipeline.pair->prefill->state()["pipeline"]["chunks"].get<uint64_t>());
    return answered;
  }));
  CHECK(most >= 2);
  CHECK(most <= 3);  // the stage's, the head's, and one on the way
  pipeline.pair->abort_both("a");
  CHECK(pipeline.comes_to_rest());
}

TEST_CASE("an abort at any time leaves no block in use in any stage") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pipeline pipeline(loop, 2, cost::tiny(), dummy, {.time_scale = 1, .chunk_tokens = 16});
  Pair& pair = *pipeline.pair;
  const auto prompt = prompt_of(500, 11);
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    const std::string id = "r" + std::to_string(step);
    const auto target = pair.reserve(id, prompt, 50);
    REQUIRE(target);
    const auto tx = pair.allocate(id, prompt, *target);
    REQUIRE(tx);
    bool answered = false;
    pair.to_p->call<Prefill>(Prefill{tx->tx}, 10s,
                             [&](const Result<PrefillDone>&) { answered = true; });
    for (int turns = 0; turns < step * 5; ++turns) REQUIRE(loop.turn(1ms));
    pair.abort_both(id);
    REQUIRE(pair.until([&] { return answered; }));
    CHECK(pipeline.comes_to_rest());
  }
  pair.serve("after", prompt);
  CHECK(count(pair.d_metrics, "mc_engine_kv_errors_total") == 0);
}

TEST_CASE("a stage that dies fails its requests at once, and the pipeline starts again") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pipeline pipeline(loop, 3, cost::tiny(), dummy, {.time_scale = 1, .chunk_tokens = 16});
  Pair& pair = *pipeline.pair;
  const auto prompt = prompt_of(500, 11);
  pair.serve("before", prompt);
  for (const size_t dead : {1u, 0u}) {
    CAPTURE(dead);
    const std::string id = "r" + std::to_string(dead);
    auto other = prompt;
    other[0] += 1;
    const auto target = pair.reserve(id, other, 4);
    REQUIRE(target);
    const auto tx = pair.allocate(id, other, *target);
    REQUIRE(tx);
    std::optional<Result<PrefillDone>> answer;
    pair.to_p->call<Prefill>(Prefill{tx->tx}, 10s,
                             [&](const Result<PrefillDone>& r) { answer = r; });
    Metrics& metrics = pipeline.after[dead]->metrics;
    const uint64_t computed = count(metrics, "mc_engine_computed_tokens_total");
    REQUIRE(pair.until(
        [&] { return count(metrics, "mc_engine_computed_tokens_total") > computed || answer; }));
    const std::string address = pipeline.after[dead]->server->address();
    pipeline.after[dead].reset();
    REQUIRE(pair.until([&] { return answer.has_value(); }));
    REQUIRE_FALSE(*answer);
    CHECK(answer->error().code == Code::kUnavailable);
    CHECK(answer->error().what.find("stage") != std::string::npos);
    CHECK(pair.until([&] { return !pair.prefill->whole(); }));
    pair.abort_both(id);  // as a conductor does
    CHECK(pair.comes_to_rest());
    const auto refused = pair.allocate("no", other, *target);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kBusy);
    pipeline.start(static_cast<uint32_t>(dead) + 1, address);
    REQUIRE(pipeline.begun());
    // Nothing from before counts as cached.
    CHECK(pair.serve("again" + id, prompt).cached_tokens == 0);
    CHECK(pair.answers["again" + id].tokens == pair.answers["before"].tokens);
  }
  CHECK(count(pair.d_metrics, "mc_engine_kv_errors_total") == 0);
  CHECK(pipeline.comes_to_rest());
}

TEST_CASE("a decode worker that is gone fails the request and not the pipeline") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pipeline pipeline(loop, 2, cost::tiny(), dummy, {.transports = {"tcp"}});
  Pair& pair = *pipeline.pair;
  const auto prompt = prompt_of(300, 5);
  const auto target = pair.reserve("a", prompt);
  REQUIRE(target);
  const auto tx = pair.allocate("a", prompt, *target);
  REQUIRE(tx);
  pair.decode.reset();
  pair.d_server.reset();
  pair.d_xfer.reset();
  const auto done = pair.call(*pair.to_p, Prefill{tx->tx});
  REQUIRE_FALSE(done);
  CHECK(done.error().what.find(target->control) != std::string::npos);
  CHECK(pair.until([&] { return pair.prefill->cache().counts().used == 0; }));
  CHECK(pair.until([&] { return pipeline.after[0]->worker->idle(); }));
  CHECK(pair.prefill->whole());
  pair.prefill->cache().check();
}

TEST_CASE("stages that do not fit, and messages of another pipeline, are refused") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pipeline pipeline(loop, 2, cost::tiny(), dummy);
  auto client = std::move(*rpc::Client::connect(loop, pipeline.after[0]->server->address()));
  Pair& pair = *pipeline.pair;
  PipelineOpen open;
  open.pipeline = 1;
  open.fingerprint = pipeline.config.fingerprint;
  open.blocks = pipeline.config.blocks;
  open.first_layer = 2;
  const auto refused = [&](const PipelineOpen& m, const char* why) {
    const auto reply = pair.call(*client, m);
    REQUIRE_FALSE(reply);
    CHECK(reply.error().code == Code::kInvalid);
    CHECK_MESSAGE(reply.error().what.find(why) != std::string::npos, reply.error().what);
  };
  PipelineOpen m = open;
  m.fingerprint = "model=another";
  refused(m, "model=another");
  m = open;
  m.blocks = 7;
  refused(m, "blocks");
  m = open;
  m.first_layer = 1;
  refused(m, "layer 2");
  m = open;
  m.others = {"127.0.0.1:1"};
  refused(m, "0 layers follow");
  m = open;
  m.release = {"9.9.9", wire::kProtocolMax + 1, wire::kProtocolMax + 1};
  const auto other = pair.call(*client, m);
  REQUIRE_FALSE(other);
  CHECK(other.error().code == Code::kUnsupported);
  CHECK(other.error().what.find("the head is mc 9.9.9 (protocol ") != std::string::npos);
  CHECK(pair.prefill->whole());  // none of these ended it
  CHECK(pair.call(*client, PipelinePing{99}).error().code == Code::kStale);
  CHECK(pair.call(*client, PipelineChunk{99, "a", 0, 1, true, {}}).error().code == Code::kStale);
  // Another head takes the stage: the first one notices, and takes it again.
  REQUIRE(pair.call(*client, open));
  CHECK(pair.call(*client, PipelineChunk{1, "a", 0, 1, true, {}}).error().code == Code::kNotFound);
  PipelineBegin begin{1, "a", prompt_of(20, 1), "", {}, {0, 1}, 0};
  CHECK(pair.call(*client, begin).error().code == Code::kInvalid);  // nothing is reserved for it
  REQUIRE(pair.until([&] {
    return count(pair.p_metrics, "mc_engine_pipeline_lost_total") > 0 && pair.prefill->whole();
  }));
  pair.serve("b", prompt_of(100, 1));
  PipelineConfig config = pipeline.config;
  config.connector = Connector::kPool;
  CHECK(PipelineWorker::open(loop, *pair.d_xfer, *pair.c_server, *pipeline.engines[1], config,
                             pair.metrics)
            .error()
            .what.find("--connector pool") != std::string::npos);
}

// A stage that stood still reads what came on two connections in any order: the head's stage-open
// that timed out may come after the one that took its place.
TEST_CASE("an older beginning of the same head is refused, and the newer one lives") {
  SteadyClock clock;
  io::Loop loop(clock);
  Pipeline pipeline(loop, 2, cost::tiny(), dummy);
  auto client = std::move(*rpc::Client::connect(loop, pipeline.after[0]->server->address()));
  Pair& pair = *pipeline.pair;
  PipelineOpen open;
  open.fingerprint = pipeline.config.fingerprint;
  open.blocks = pipeline.config.blocks;
  open.first_layer = 2;
  open.head = 7;
  open.beginning = 2;
  open.pipeline = 22;
  REQUIRE(pair.call(*client, open));
  open.beginning = 1;
  open.pipeline = 21;
  const auto late = pair.call(*client, open);
  REQUIRE_FALSE(late);
  CHECK(late.error().code == Code::kStale);
  CHECK(late.error().what.find("begun again") != std::string::npos);
  CHECK(pair.call(*client, PipelineChunk{22, "a", 0, 1, true, {}}).error().code == Code::kNotFound);
  CHECK(pair.call(*client, PipelineChunk{21, "a", 0, 1, true, {}}).error().code == Code::kStale);
  open.head = 8;  // another process: its first beginning is newer than any of the last one's
  open.pipeline = 81;
  CHECK(pair.call(*client, open));
}

TEST_CASE("a chunk whose layers have no room in the queue is refused, and leaves nothing") {
  SteadyClock clock;
  io::Loop loop(clock);
  cost::ModelSpec whole = cost::tiny();
  whole.layers = 2 * (static_cast<uint32_t>(ComputeThread::kQueuedMax) + 4);
  const cost::ModelSpec slice = *cost::slice_of(whole, 1, 2);
  const DummyEngine engine(slice, kBlock);
  PipelineConfig config;
  config.stage = 1;
  config.fingerprint = whole.fingerprint(kBlock);
  config.blocks = 2;
  const Stage stage(loop, engine, config, "127.0.0.1:0");
  Pair pair(loop);
  auto client = std::move(*rpc::Client::connect(loop, stage.server->address()));
  PipelineOpen open;
  open.pipeline = 1;
  open.fingerprint = config.fingerprint;
  open.blocks = config.blocks;
  open.first_layer = slice.first_layer;
  REQUIRE(pair.call(*client, open));
  const auto prompt = prompt_of(20, 1);
  const auto target = pair.reserve("a", prompt);
  REQUIRE(target);
  const auto begun = pair.call(*client, PipelineBegin{1, "a", prompt, "", *target, {0, 1}, 0});
  REQUIRE_MESSAGE(begun, begun.error().what);
  PipelineChunk chunk{1, "a", 0, 20, true, {}};
  chunk.rows.bytes.resize(20 * slice.hidden * sizeof(float));
  const auto refused = pair.call(*client, chunk);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kBusy);
  CHECK(stage.worker->idle());
  CHECK(pair.call(*pair.to_d, Abort{"a", "refused"}));
  CHECK(pair.comes_to_rest());
}

}  // namespace
}  // namespace pipeline_test
}  // namespace mc::serve
