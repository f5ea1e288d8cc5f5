// Tensor-parallel ranks that compute a model together: the bits of one process, in KV and in
// answers, for every family, kind of weights and connector.
#include "serve/engine/rank_group.h"

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "pool.h"
#include "serve/connector/kv_shape.h"
#include "small_engine.h"
#include "tests/unit/model/family_files.h"
#include "tests/unit/model/seeded_blocks.h"
#include "thread_ranks.h"

namespace mc::serve {
namespace rank_group_test {
namespace {

model::ModelConfig six_heads() {
  model::ModelConfig c = small();
  c.heads = c.kv_heads = 6;
  return c;
}

CpuEngine alone_of(const model::ModelConfig& config, const model::WeightSources& sources,
                   model::KvFormat kv, uint32_t block = kBlock) {
  auto threads = std::make_unique<model::ThreadPool>(1);
  auto weights = model::pack_weights(sources, model::DType::kF32, *threads);
  return {model::spec_of(config, kv),
          config,
          std::move(weights),
          {kv, block},
          *model::kernels_named("auto"),
          std::move(threads)};
}

std::vector<int32_t> tokens_in(size_t n, uint32_t vocab) {
  auto tokens = prompt_of(n, n);
  for (int32_t& t : tokens) t %= static_cast<int32_t>(vocab);
  return tokens;
}

struct Served {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  std::vector<std::byte> kv;  // plain blocks of the prompts' full ones
  bool operator==(const Served&) const = default;
};

// Two prompts, computed `chunk` tokens at a time, then steps of both together.
Served serve_pair(const Engine& engine, std::vector<int32_t> first, size_t chunk, size_t steps) {
  const size_t each = (first.size() + steps) / engine.block_tokens() + 1;
  const PoolOfBlocks pool(engine, 2 * each);
  const std::vector<BlockHash> parents(each);
  std::vector<std::vector<int32_t>> texts{first, first};
  texts[1].resize(first.size() / 2);
  const auto view = [&](size_t i) {
    return SequenceView{texts[i], parents, pool.blocks().subspan(i * each, each)};
  };
  for (size_t i = 0; i < 2; ++i)
    for (size_t at = 0; at < texts[i].size(); at += chunk)
      engine.write({view(i), at, std::min(texts[i].size(), at + chunk)});
  Served out;
  const KvShape shape = KvShape::of(engine.spec(), engine.block_tokens(), engine.ranks());
  for (size_t b = 0; b < first.size() / engine.block_tokens(); ++b)
    for (const auto& part : plain_parts(pool.block(b), shape))
      out.kv.insert(out.kv.end(), part.begin(), part.end());
  for (size_t step = 0; step < steps; ++step) {
    std::vector<TokenLogprobs> told(2);
    std::vector<DecodeItem> items;
    for (size_t i = 0; i < 2; ++i)
      items.push_back({view(i), {.ignore_eos = true, .logprobs = 5}, step == 0, &told[i]});
    const auto tokens = engine.decode(items);
    for (size_t i = 0; i < 2; ++i) {
      texts[i].push_back(tokens[i]);
      out.tokens.push_back(tokens[i]);
      out.logprobs.insert(out.logprobs.end(), told[i].top_logprobs.begin(),
                          told[i].top_logprobs.end());
    }
  }
  return out;
}

TEST_CASE("a rank gives the memory of a pool back when it maps another one") {
  const auto mapped = [](const std::string& name) {
    std::ifstream maps("/proc/self/maps");
    const std::string all(std::istreambuf_iterator<char>(maps), {});
    return all.find("memfd:" + name) != std::string::npos;
  };
  const io::Fd first(::memfd_create("mc-first-pool", 0)), next(::memfd_create("mc-next-pool", 0));
  for (const io::Fd* file : {&first, &next}) REQUIRE(::ftruncate(file->get(), 8192) == 0);
  PoolMapping pool;
  REQUIRE(pool.map(first.get(), 8192) != nullptr);
  CHECK(mapped("mc-first-pool"));
  REQUIRE(pool.map(next.get(), 8192) != nullptr);
  CHECK_FALSE(mapped("mc-first-pool"));
  CHECK(mapped("mc-next-pool"));
  CHECK(pool.map(-1, 8192) == nullptr);
  CHECK_FALSE(mapped("mc-next-pool"));
}

TEST_CASE("ranks gather each other's columns in order, however they are divided") {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
    auto first = RankMemory::create(small(), kBlock, ranks);
    REQUIRE(first);
    std::vector<std::unique_ptr<RankMemory>> memories;
    memories.push_back(std::move(*first));
    for (uint32_t r = 1; r < ranks; ++r) {
      auto other = RankMemory::attach(small(), kBlock, {r, ranks},
                                      io::Fd(::fcntl(memories[0]->file(), F_DUPFD_CLOEXEC, 0)));
      REQUIRE(other);
      memories.push_back(std::move(*other));
    }
    std::atomic<int> wrong{0};
    const auto run = [&](RankMemory& memory) {
      for (size_t round = 0; round < 300; ++round) {
        const size_t total = 5 + round % 40, rows = 1 + round % 7;
        const size_t begin = memory.share().begin(total), end = memory.share().end(total);
        const auto at = [&](size_t row, size_t column) {
          return static_cast<float>(round * 1000 + row * 100 + column);
        };
        std::vector<float> own;
        for (size_t r = 0; r < rows; ++r)
          for (size_t c = begin; c < end; ++c) own.push_back(at(r, c));
        const float* const all = memory.gather(own.data(), rows, total);
        for (size_t r = 0; r < rows; ++r)
          for (size_t c = 0; c < total; ++c) wrong += all[r * total + c] != at(r, c);
      }
    };
    std::vector<std::thread> threads;
    for (uint32_t r = 1; r < ranks; ++r) threads.emplace_back([&, r] { run(*memories[r]); });
    run(*memories[0]);
    for (std::thread& t : threads) t.join();
    CHECK(wrong.load() == 0);
  }
}

TEST_CASE("every family's answers and KV are the bits of one process, with two ranks") {
  for (const mc::test::FamilyCase& c : mc::test::family_cases()) {
    CAPTURE(c.name);
    const auto tensors = mc::test::hf_tensors(c, 5);
    const model::TensorSet set{mc::test::views(tensors), {}};
    const auto config = model::parse_config(c.json);
    REQUIRE_MESSAGE(config.has_value(), config.error().what);
    const auto sources = model::weight_sources(set, *config, model::Naming::kHuggingFace);
    REQUIRE_MESSAGE(sources.has_value(), sources.error().what);
    const auto prompt = tokens_in(70, config->vocab);
    const CpuEngine one = alone_of(*config, *sources, model::DType::kBf16);
    const ThreadRanks two(*config, *sources, model::DType::kBf16, kBlock, 2);
    const Served want = serve_pair(one, prompt, prompt.size(), 3);
    CHECK(serve_pair(two.engine(), prompt, 32, 3) == want);
    CHECK(want.kv.size() == 4 * one.spec().block_bytes(kBlock));
  }
}

TEST_CASE("one, two and three ranks give the same bits, with quantized weights and KV too") {
  model::ModelConfig c = six_heads();
  c.hidden = 64, c.head_dim = 16;
  const model::BlockFormat& f = *model::block_format_numbered(8);  // Q8_0
  for (const bool quantized : {false, true}) {
    CAPTURE(quantized);
    model::WeightSources sources = model::random_sources(c, 7);
    const auto quantize = [&](model::Source& s) {
      const size_t row = s.columns / f.elements * f.bytes;
      auto bytes = std::make_shared<std::vector<std::byte>>(
          mc::test::seeded_blocks(f, s.rows * size_t{s.columns} / f.elements));
      for (size_t at = 0; at < s.rows * row; at += f.bytes) {  // small scales
        const uint16_t scale = 0x1400;
        std::memcpy(bytes->data() + at, &scale, 2);
      }
      s.blocks = {model::BlockRows{&f, s.rows, [bytes, row](uint32_t n, std::vector<std::byte>&) {
                                     return static_cast<const std::byte*>(bytes->data() + n * row);
                                   }}};
    };
    for (model::LayerSources& l : sources.layers)
      for (model::Source* s : {&l.qkv, &l.output, &l.gate_up, &l.down})
        if (quantized) quantize(*s);
    const auto kv = quantized ? model::KvFormat::q8() : model::KvFormat(model::DType::kF32);
    const auto prompt = tokens_in(70, c.vocab);
    const Served want = serve_pair(alone_of(c, sources, kv), prompt, 70, 4);
    for (const uint32_t ranks : {1u, 2u, 3u, 6u}) {
      CAPTURE(ranks);
      const ThreadRanks several(c, sources, kv, kBlock, ranks);
      CHECK(serve_pair(several.engine(), prompt, 48, 4) == want);
    }
  }
}

TEST_CASE("a chunk of more rows than a pass has is computed in several") {
  const model::ModelConfig c = small();
  const auto sources = model::random_sources(c, 3);
  const auto prompt = tokens_in(2 * RankMemory::kRows + 100, c.vocab);
  const ThreadRanks two(c, sources, model::DType::kF32, kBlock, 2);
  CHECK(serve_pair(two.engine(), prompt, prompt.size(), 2) ==
        serve_pair(alone_of(c, sources, model::DType::kF32), prompt, 100, 2));
}

TEST_CASE("workers of several ranks give one process's tokens by every connector") {
  SteadyClock clock;
  const model::ModelConfig c = six_heads();
  const auto sources = model::random_sources(c, 3);
  const CpuEngine one = alone_of(c, sources, model::DType::kF32);
  const ThreadRanks of_p(c, sources, model::DType::kF32, kBlock, 3);
  const ThreadRanks of_d(c, sources, model::DType::kF32, kBlock, 3);
  const CpuEngine plain = alone_of(c, sources, model::DType::kF32);
  int serial = 0;
  for (const Way& way : kWays)
    for (const bool both : {true, false}) {
      CAPTURE(way.name);
      CAPTURE(both);
      io::Loop loop(clock);
      Store store(loop, 16 * kMiB);
      PairOptions options;
      options.connector = way.connector;
      options.layerwise = way.layerwise;
      options.master = store.master->control();
      options.prefill_engine = &of_p.engine();
      options.decode_engine = both ? &of_d.engine() : &plain;
      Pair pair(loop, options);
      for (const size_t n : {5u, 70u, 70u}) {  // the last from blocks that are there
        const std::string id = std::to_string(++serial);
        (void)pair.serve(id, tokens_in(n, c.vocab), 6);
        CHECK(pair.answers[id].tokens == alone(one, tokens_in(n, c.vocab), 6, kGreedy));
      }
      CHECK(pair.comes_to_rest());
    }
}

// A model of latent attention on one process, and on two and four ranks, whose first one writes KV.
struct Latent {
  Latent() {
    for (const mc::test::FamilyCase& c : mc::test::family_cases()) {
      if (c.name != "deepseek2") continue;
      tensors = mc::test::hf_tensors(c, 5);
      set = {mc::test::views(tensors), {}};
      config = *model::parse_config(c.json);
      sources = *model::weight_sources(set, config, model::Naming::kHuggingFace);
    }
    one.reset(new CpuEngine(alone_of(config, sources, model::DType::kBf16)));
    of_p = std::make_unique<ThreadRanks>(config, sources, model::DType::kBf16, kBlock, 2);
    of_d = std::make_unique<ThreadRanks>(config, sources, model::DType::kBf16, kBlock, 4);
  }
  PairOptions options(const Way& way, const Store& store) const {
    PairOptions o;
    o.connector = way.connector;
    o.layerwise = way.layerwise;
    o.master = store.master->control();
    o.prefill_engine = &of_p->engine();
    o.decode_engine = &of_d->engine();
    return o;
  }
  mc::test::NamedTensors tensors;
  model::TensorSet set;
  model::ModelConfig config;
  model::WeightSources sources;
  std::unique_ptr<CpuEngine> one;
  std::unique_ptr<ThreadRanks> of_p, of_d;
};

TEST_CASE("latent vectors are written by the first rank and read by all, by every connector") {
  SteadyClock clock;
  const Latent model;
  CHECK(model.of_p->engine().ranks() == 1);
  int serial = 0;
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    io::Loop loop(clock);
    Store store(loop, 64 * kMiB);
    Pair pair(loop, model.options(way, store));
    for (const size_t n : {5u, 70u, 70u}) {
      const std::string id = std::to_string(++serial);
      const PrefillDone done = pair.serve(id, tokens_in(n, 61), 6);
      const size_t sent = (n + kBlock - 1) / kBlock - (serial % 3 == 0 ? n / kBlock : 0);
      CHECK(done.kv_bytes == sent * model.one->spec().block_bytes(kBlock));  // one copy
      CHECK(pair.answers[id].tokens == alone(*model.one, tokens_in(n, 61), 6, kGreedy));
    }
    CHECK(pair.comes_to_rest());
  }
}

TEST_CASE("latent vectors of one writer come back from the SSD tier, by every connector") {
  SteadyClock clock;
  const Latent model;
  const DiskFolder disk;
  const auto prompt = tokens_in(70, 61);
  const auto want = alone(*model.one, prompt, 6, kGreedy);
  {
    io::Loop loop(clock);
    Store store(loop, 64 * kMiB, disk.path);
    Pair pair(loop, model.options({"multi", Connector::kMulti, true}, store));
    pair.serve("first", prompt, 6);
    CHECK(pair.answers["first"].tokens == want);
    const auto master = rpc::Client::connect(loop, store.master->control());
    REQUIRE(master);
    REQUIRE(pair.until([&] {
      const auto stat = pair.call(**master, store::Stat{});
      return stat && stat->disk_objects >= 4;
    }));
    CHECK(pair.comes_to_rest());
  }
  for (const Way& way : kWays)
    for (const bool layers : {false, true}) {  // a prefix that is loaded layer by layer
      CAPTURE(way.name);
      CAPTURE(layers);
      io::Loop loop(clock);
      Store store(loop, 64 * kMiB, disk.path);  // its memory is empty
      PairOptions options = model.options(way, store);
      options.pool_layers = layers;
      Pair pair(loop, options);
      const PrefillDone done = pair.serve("again", prompt, 6);
      CHECK(done.pool_tokens == 64);
      CHECK(pair.answers["again"].tokens == want);
      CHECK(pair.comes_to_rest());
    }
}

TEST_CASE("ranks that do not divide the heads are refused, and shared memory of another model") {
  CHECK(model::check_tp(six_heads(), 3).has_value());
  for (const uint32_t ranks : {0u, 4u, 12u}) {
    const auto refused = model::check_tp(six_heads(), ranks);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kInvalid);
    CHECK(refused.error().what.find("--tp") != std::string::npos);
  }
  const auto memory = RankMemory::create(small(), kBlock, 2);
  REQUIRE(memory);
  model::ModelConfig other = small();
  other.vocab = 1'000'000;
  const auto refused = RankMemory::attach(other, kBlock, {1, 2},
                                          io::Fd(::fcntl((*memory)->file(), F_DUPFD_CLOEXEC, 0)));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kInvalid);
}

}  // namespace
}  // namespace rank_group_test
}  // namespace mc::serve
