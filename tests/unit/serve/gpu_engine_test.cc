// A device (its stand-in) gives the tokens of the CPU engine, also if it fails half-way.
#include "serve/engine/gpu_engine.h"

#include "device/stand_in.h"
#include "serve/engine/device_kv_metrics.h"
#include "small_engine.h"
#include "tests/unit/model/shared.h"

using namespace mc;
using namespace mc::serve;

namespace {

const SteadyClock kGpuClock;

struct OnStandIn {
  explicit OnStandIn(uint64_t vram = 0, device::StandIn::Config config = {.bytes = 64u << 20})
      : device(device::StandIn::make(kGpuClock, config)) {
    const model::KvLayout kv{model::DType::kBf16, kBlock};
    model::ThreadPool threads(1);
    auto transformer = gpu::Transformer::open(device, small(), model::random_sources(small(), 3),
                                              model::DType::kF32, kv, threads);
    REQUIRE_MESSAGE(transformer.has_value(), transformer.error().what);
    const auto fallback = [this]() -> Result<std::unique_ptr<Engine>> {
      ++fallbacks;
      return std::unique_ptr<Engine>(new CpuEngine(make(1, "auto")));
    };
    engine.emplace(model::spec_of(small(), kv.type), std::move(*transformer), fallback, vram);
  }
  std::shared_ptr<device::StandIn> device;
  int fallbacks = 0;
  std::optional<GpuEngine> engine;
};

struct Said {
  std::vector<int32_t> tokens;
  std::vector<std::byte> kv;
  std::vector<double> logprobs{};
  bool operator==(const Said&) const = default;
};

// A prompt in two chunks, then steps. `before` runs with the number of each layer and step.
template <class Before>
Said said_by(const Engine& engine, std::vector<int32_t> tokens, size_t n, Before before,
             const Sampling& sampling = kGreedy) {
  const size_t bytes = engine.spec().block_bytes(kBlock);
  const size_t blocks = (tokens.size() + n) / kBlock + 1, half = tokens.size() / 2 + 3;
  Said out{{}, std::vector<std::byte>(blocks * bytes), {}};
  engine.use_pool(out.kv);
  std::vector<std::byte*> at;
  for (size_t i = 0; i < blocks; ++i) at.push_back(out.kv.data() + i * bytes);
  std::vector<BlockHash> parents(blocks);
  const auto chain = [&] {
    for (size_t b = 1; b * kBlock < tokens.size(); ++b)
      parents[b] = chain_hash(parents[b - 1],
                              std::span<const int32_t>(tokens).subspan((b - 1) * kBlock, kBlock));
  };
  chain();
  int work = 0;
  for (const size_t begin : {size_t{0}, half}) {
    const size_t end = begin == 0 ? half : tokens.size();
    Activations activations;
    for (uint32_t layer = 0; layer < engine.spec().layers; ++layer) {
      before(work++);
      engine.prefill_layer({{tokens, parents, at}, begin, end}, layer, activations);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    before(work++);
    TokenLogprobs said;
    const DecodeItem item{{tokens, parents, at}, sampling, i == 0, &said};
    out.tokens.push_back(engine.decode({&item, 1})[0]);
    if (sampling.logprobs > 0) out.logprobs.push_back(said.logprob);
    tokens.push_back(out.tokens.back());
    chain();
  }
  return out;
}

}  // namespace

TEST_CASE("a device gives the tokens of the CPU, and the CPU repeats what the device failed in") {
  const auto prompt = small_prompt(70, 1);
  const auto nothing = [](int) {};
  const CpuEngine cpu = make(1, "plain");
  const Said want = said_by(cpu, prompt, 6, nothing);
  OnStandIn whole;
  CHECK(said_by(*whole.engine, prompt, 6, nothing) == want);
  CHECK_FALSE(whole.engine->given_up());
  for (const int at : {0, 1, 2, 4, 5, 6, 9}) {  // layers of both chunks, then steps
    CAPTURE(at);
    OnStandIn s;
    const Said got = said_by(*s.engine, prompt, 6, [&](int work) {
      if (work == at) s.device->inject({.lost = true});
    });
    CHECK(got == want);
    CHECK(s.engine->given_up());
    CHECK(s.fallbacks == 1);
  }
}

TEST_CASE("what a device cannot draw by itself the host draws, from the device's logits") {
  const auto prompt = small_prompt(70, 1);
  const auto nothing = [](int) {};
  const CpuEngine cpu = make(1, "plain");
  const std::vector<model::Bias> bias = {{7, 3}, {8, -100}};
  Sampling s = kGreedy;
  s.prompt = prompt.size();
  const Said plain = said_by(cpu, prompt, 30, nothing, s);
  s.penalties = {.presence = 0.5, .frequency = 1, .repetition = 1.3};
  s.bias = bias;
  for (const double temperature : {0.0, 0.9}) {
    s.temperature = temperature;
    s.min_p = temperature / 10;
    s.logprobs = temperature > 0 ? 3 : 0;
    const Said want = said_by(cpu, prompt, 30, nothing, s);
    CHECK(want.tokens != plain.tokens);
    CHECK(want.logprobs.size() == (temperature > 0 ? 30 : 0));
    OnStandIn streamed, resident(UINT64_MAX);
    CHECK(said_by(*streamed.engine, prompt, 30, nothing, s) == want);
    CHECK(said_by(*resident.engine, prompt, 30, nothing, s) == want);
    CHECK_FALSE(resident.engine->given_up());
  }
}

TEST_CASE("blocks that stay on the device are reused, and a lost device loses no KV") {
  const auto prompt = small_prompt(70, 1);
  const auto nothing = [](int) {};
  const CpuEngine cpu = make(1, "plain");
  const Said want = said_by(cpu, prompt, 6, nothing);
  const uint64_t block = cpu.spec().block_bytes(kBlock);
  for (const uint64_t vram : {2 * block, 4 * block, GpuEngine::kVramAuto}) {
    CAPTURE(vram);
    OnStandIn s(vram);
    CHECK(said_by(*s.engine, prompt, 6, nothing) == want);
    const DeviceKv kv = s.engine->device_kv().value();
    CHECK(kv.blocks == (vram == GpuEngine::kVramAuto ? want.kv.size() : vram) / block);
    CHECK(kv.bytes_out > 0);
    if (vram == GpuEngine::kVramAuto) {
      CHECK(kv.hits > 0);
      CHECK(kv.bytes_in == 0);  // all that was read had been computed here
    } else {
      CHECK(kv.bytes_in > 0);
    }
    for (const int at : {3, 5, 7, 9}) {
      CAPTURE(at);
      OnStandIn lost(vram);
      const Said got = said_by(*lost.engine, prompt, 6, [&](int work) {
        if (work == at) lost.device->inject({.lost = true});
      });
      CHECK(got == want);
      CHECK(lost.engine->given_up());
    }
  }
}

TEST_CASE("metrics count each update once") {
  Metrics metrics;
  DeviceKvMetrics told(metrics);
  const auto has = [&](const std::string& line) {
    CHECK_MESSAGE(metrics.text().find("\n" + line + "\n") != std::string::npos, line);
  };
  DeviceKv kv{.blocks = 8,
              .used = 3,
              .hits = 5,
              .uploads = 2,
              .streamed = 1,
              .evictions = 4,
              .bytes_in = 100,
              .bytes_out = 70,
              .graph_steps = 6};
  told.update(kv);
  told.update(kv);
  has("mc_engine_device_blocks 8");
  has("mc_engine_device_blocks_used 3");
  has("mc_engine_device_reads_total{block=\"hit\"} 5");
  has("mc_engine_device_reads_total{block=\"uploaded\"} 2");
  has("mc_engine_device_reads_total{block=\"streamed\"} 1");
  has("mc_engine_device_evictions_total 4");
  has("mc_engine_device_kv_bytes_total{way=\"in\"} 100");
  has("mc_engine_device_kv_bytes_total{way=\"out\"} 70");
  has("mc_engine_device_graph_steps_total 6");
  kv.used = 1;
  kv.hits = 9;
  told.update(kv);
  has("mc_engine_device_blocks_used 1");
  has("mc_engine_device_reads_total{block=\"hit\"} 9");
}

TEST_CASE("a device that has no room for a prompt leaves it to the CPU") {
  OnStandIn s;
  const auto prompt = small_prompt(50, 2);
  const auto left = s.device->free_bytes();
  REQUIRE(left);
  const auto hog = s.device->allocate(*left - 4096);
  REQUIRE(hog);
  const auto nothing = [](int) {};
  const CpuEngine cpu = make(1, "auto");
  CHECK(said_by(*s.engine, prompt, 3, nothing) == said_by(cpu, prompt, 3, nothing));
  CHECK(s.engine->given_up());
}

TEST_CASE("a cuda engine without a device names the options to use; a stand-in is a device") {
  const auto with = [](const char* device) { return CpuOptions{1, "auto", device}; };
  const EngineChoice choice{.model = "tiny", .engine = "cuda"};
  const auto toaster = open_engine(choice, with("toaster"), 16);
  REQUIRE_FALSE(toaster.has_value());
  CHECK(toaster.error().code == Code::kInvalid);
  const auto none = open_engine(choice, with("cuda:63"), 16);
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().what.find("--engine cpu") != std::string::npos);
  CHECK(open_engine(choice, {1, "sse9", "stand-in"}, 16).error().code == Code::kUnsupported);
  CHECK_FALSE(open_engine(choice, {1u << 20, "auto", "stand-in"}, 16).has_value());
  CpuOptions vram = with("stand-in");
  vram.vram = "much";
  const auto much = open_engine(choice, vram, 16);
  REQUIRE_FALSE(much.has_value());
  CHECK(much.error().what.find("--vram 'much'") != std::string::npos);
  const auto gemm = open_engine(choice, {1, "auto", "stand-in", "cublaslt"}, 16);
  REQUIRE_FALSE(gemm.has_value());
  CHECK(gemm.error().what.find("--gemm") != std::string::npos);
  const auto there = open_engine(choice, with("stand-in"), 16);
  REQUIRE_MESSAGE(there.has_value(), there.error().what);
  const auto cpu = open_model_info({.model = "tiny", .engine = "cpu"});
  REQUIRE(cpu);
  CHECK((*there)->spec().fingerprint(16) != cpu->spec.fingerprint(16));
}

TEST_CASE("weights stay f16 on a device, and give the tokens of f32 on the CPU") {
  const std::string shared = mc::test::shared_models();
  if (shared.empty()) return;
  const std::string folder = shared + "/stories260K/gguf/stories260K-";
  const auto opened = [&](const char* file, const char* engine, const char* activations) {
    EngineChoice choice{.model = folder + file, .engine = engine};
    choice.activations = activations;
    return open_engine(choice, {1, "auto", "stand-in"}, kBlock);
  };
  const std::vector<int32_t> prompt = {1, 403, 407, 261, 378, 31, 40, 77, 12, 300, 9};
  const auto said = [&](const char* engine, const char* activations) {
    const auto made = opened("f16.gguf", engine, activations);
    REQUIRE_MESSAGE(made.has_value(), made.error().what);
    return said_by(**made, prompt, 12, [](int) {});
  };
  CHECK(said("cuda", "f32") == said("cpu", "f32"));
  const auto known = [&](const char* activations) {
    EngineChoice choice{.model = folder + "f16.gguf", .engine = "cuda"};
    choice.activations = activations;
    const auto info = open_model_info(choice);
    REQUIRE_MESSAGE(info.has_value(), info.error().what);
    return info->spec;
  };
  CHECK(known("f16").kv_bytes_per_token() * 2 == known("f32").kv_bytes_per_token());
  CHECK(known("f16").fingerprint(16) != known("f32").fingerprint(16));
  // The tensor cores do not support the sizes of this model.
  CHECK(opened("f16.gguf", "cuda", "f16").error().what.find("sizes in eights") !=
        std::string::npos);
  CHECK(opened("f16.gguf", "cpu", "f16").error().code == Code::kUnsupported);
  CHECK(opened("f32.gguf", "cuda", "f16").error().what.find("want weights of f16") !=
        std::string::npos);
}
