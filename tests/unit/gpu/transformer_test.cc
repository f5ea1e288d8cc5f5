// The forward pass on a device against the CPU's, bit for bit: over the stand-in, over the driver
// in host memory, and over a real device where there is one.
#include <cmath>

#include "small_model.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::gpu;
using device::must;
using model::DType;

namespace {

std::vector<float> prefill(const model::Transformer& t, const Blocks& kv,
                           const std::vector<int32_t>& tokens) {
  const model::ModelConfig& c = t.config();
  std::vector<float> x(tokens.size() * c.hidden), logits(tokens.size() * c.vocab);
  t.embed(tokens, x.data());
  const model::Slice slice = kv.slice(0, tokens.size());
  for (uint32_t l = 0; l < c.layers; ++l) t.layer(l, {&slice, 1}, x.data());
  t.logits(x.data(), tokens.size(), logits.data());
  return logits;
}

}  // namespace

TEST_CASE("logits and KV are the CPU's bit for bit, in all formats, however a prompt is cut") {
  for (const std::string& kind : device::kinds())
    for (const DType weights : {DType::kF32, DType::kF16, DType::kBf16})
      for (const DType kv_type : {DType::kF32, DType::kF16, DType::kBf16}) {
        if (kThreadSanitizer && kv_type != weights) continue;
        CAPTURE(kind);
        CAPTURE(model::name(weights));
        CAPTURE(model::name(kv_type));
        const model::KvLayout layout{kv_type, 16};
        Both both(device::open_kind(kind), layout, weights);
        const auto tokens = tokens_of(83, 1, small_config().vocab);
        const Blocks on_cpu(small_config(), layout, 90), on_gpu(small_config(), layout, 90);
        const auto want = prefill(both.cpu, on_cpu, tokens);
        const size_t chunk = kv_type == DType::kF32 ? 83 : 17;
        CHECK(prefill(*both.gpu, on_gpu, tokens, chunk) == want);
        CHECK(on_gpu.memory == on_cpu.memory);
      }
}

TEST_CASE("what Qwen2 adds to queries, keys and values is the CPU's bit for bit") {
  model::ModelConfig c = small_config();
  c.family = model::Family::kQwen2;
  const model::KvLayout layout{DType::kF32, 16};
  Both both(device::open_kind("stand-in"), layout, DType::kBf16, c),
      without(device::open_kind("stand-in"), layout, DType::kBf16);
  const auto tokens = tokens_of(40, 1, c.vocab);
  const Blocks on_cpu(c, layout, 40), on_gpu(c, layout, 40), other(c, layout, 40);
  const auto want = prefill(both.cpu, on_cpu, tokens);
  CHECK(prefill(*both.gpu, on_gpu, tokens, 13) == want);
  CHECK(on_gpu.memory == on_cpu.memory);
  CHECK(prefill(*without.gpu, other, tokens, 40) != want);
}

TEST_CASE("a step of sequences of many lengths gives the tokens of each alone on the CPU") {
  for (const std::string& kind : device::kinds()) {
    CAPTURE(kind);
    const model::KvLayout layout{DType::kF32, 8};
    Both both(device::open_kind(kind), layout, DType::kF32);
    const uint32_t vocab = small_config().vocab;
    std::vector<Blocks> kv;
    std::vector<model::Slice> slices;
    std::vector<int32_t> last, want;
    std::vector<Choice> choices;
    for (size_t i = 0; i < 5; ++i) {
      const size_t n = 1 + 33 * i;
      const auto tokens = tokens_of(n, 10 + i, vocab);
      kv.emplace_back(small_config(), layout, n);
      choices.push_back({{.temperature = i == 3 ? 1.5 : 0, .seed = i, .position = n}, i % 2 == 0});
      auto logits = prefill(both.cpu, kv.back(), tokens);
      model::Draw draw = choices[i].draw;
      if (choices[i].masked) draw.never = both.cpu.config().eos;
      want.push_back(model::sample(std::span(logits).last(vocab), draw));
      last.push_back(tokens.back());
    }
    for (size_t i = 0; i < 5; ++i) slices.push_back(kv[i].slice(33 * i, 33 * i + 1));
    CHECK(must(both.gpu->step(last, slices, choices)) == want);
  }
}

TEST_CASE("full, busy and lost devices return their codes, and nothing hangs") {
  const auto device = device::StandIn::make(device::kClock, {.bytes = 4u << 20});
  const model::KvLayout layout{DType::kF32, 16};
  Both both(device, layout, DType::kF32);
  const auto tokens = tokens_of(40, 2, small_config().vocab);
  const Blocks kv(small_config(), layout, 40);
  const model::Slice slice = kv.slice(0, 40);
  const device::Memory hog = must(device->allocate(must(device->free_bytes()) - 4096));
  const auto full = both.gpu->begin(tokens, {&slice, 1});
  REQUIRE_FALSE(full.has_value());
  CHECK(full.error().code == Code::kNoSpace);
  device::StandIn::Config config{.bytes = 16u << 20};
  const auto other = device::StandIn::make(device::kClock, config);
  Both again(other, layout, DType::kF32);
  Pass pass = must(again.gpu->begin(tokens, {&slice, 1}));
  must(again.gpu->layer(pass, 0));
  other->inject({.lost = true});
  const auto lost = again.gpu->layer(pass, 1);
  REQUIRE_FALSE(lost.has_value());
  CHECK(lost.error().code == Code::kUnavailable);
  again.gpu->drain();
}

TEST_CASE(
    "a layer computes ahead of its call, but not from blocks of the host, which may come late") {
  model::ModelConfig c = small_config();
  c.layers = 5;
  const model::KvLayout layout{DType::kF32, 16};
  for (const bool keep : {false, true}) {
    CAPTURE(keep);
    Both both(device::open_kind("stand-in"), layout, DType::kF32, c);
    if (keep) must(both.gpu->keep_blocks(8 * both.gpu->block_bytes()));
    const auto tokens = tokens_of(60, 3, c.vocab);
    const Blocks on_cpu(c, layout, 60), late(c, layout, 60);
    const auto want = prefill(both.cpu, on_cpu, tokens);
    const model::Slice rest = late.slice(32, 60);
    Pass pass = must(both.gpu->begin(std::span(tokens).subspan(32), {&rest, 1}));
    const size_t layer_bytes = on_cpu.memory[0].size() / c.layers;
    for (uint32_t l = 0; l < c.layers; ++l) {
      for (size_t b = 0; b < 2; ++b)  // the first 32 positions
        std::copy_n(on_cpu.blocks[b] + l * layer_bytes, layer_bytes,
                    late.blocks[b] + l * layer_bytes);
      must(both.gpu->layer(pass, l));
    }
    CHECK(must(both.gpu->logits(pass)) ==
          std::vector<float>(want.begin() + static_cast<long>(32 * c.vocab), want.end()));
    CHECK(late.memory == on_cpu.memory);
  }
}

TEST_CASE("a prompt that goes no further leaves nothing to those after it") {
  model::ModelConfig c = small_config();
  c.layers = 5;
  const model::KvLayout layout{DType::kF32, 16};
  for (const uint64_t kept : {0u, 3u, 8u}) {  // none stays, some are streamed, all stay
    CAPTURE(kept);
    Both both(device::open_kind("stand-in"), layout, DType::kF32, c);
    if (kept > 0) must(both.gpu->keep_blocks(kept * both.gpu->block_bytes()));
    const auto given_up = tokens_of(60, 4, c.vocab), tokens = tokens_of(60, 5, c.vocab);
    const Blocks on_cpu(c, layout, 60);
    const auto want = prefill(both.cpu, on_cpu, tokens);
    for (int turn = 0; turn < 6; ++turn) {
      {
        const Blocks other(c, layout, 60);
        const model::Slice slice = other.slice(0, 60);
        Pass pass = must(both.gpu->begin(given_up, {&slice, 1}));
        must(both.gpu->layer(pass, 0));
        must(both.gpu->layer(pass, 1));  // the third computes
      }
      if (turn % 2 == 0) {
        const Blocks kv(c, layout, 60);
        REQUIRE(prefill(*both.gpu, kv, tokens, 60) == want);
        REQUIRE(kv.memory == on_cpu.memory);
        continue;
      }
      Blocks kv = on_cpu;  // a step whose blocks are uploaded
      for (size_t b = 0; b < kv.memory.size(); ++b) kv.blocks[b] = kv.memory[b].data();
      const model::Slice last = kv.slice(59, 60);
      const Choice choice;
      const auto next = must(both.gpu->step({&tokens.back(), 1}, {&last, 1}, {&choice, 1}));
      std::vector<float> row(want.end() - static_cast<long>(c.vocab), want.end());
      REQUIRE(next[0] == model::sample(row, {.position = 60}));
      REQUIRE(kv.memory == on_cpu.memory);
    }
  }
}

TEST_CASE("a model with parts beyond LLaMA's is refused by what it has") {
  model::ThreadPool threads(1);
  const model::WeightSources sources = model::random_sources(small_config(), 7);
  model::ModelConfig c = small_config();
  c.layer_kinds.resize(c.layers);
  c.layer_kinds[1].window = 100;
  const auto open = [&] {
    return Transformer::open(device::open_kind("stand-in"), c, sources, DType::kF32,
                             {DType::kF32, 16}, threads, {});
  };
  CHECK(open().error().code == Code::kUnsupported);
  CHECK(open().error().what.find("sliding windows") != std::string::npos);
  c.layer_kinds.clear();
  CHECK(open().has_value());
}

TEST_CASE(
    "on the tensor cores logits are near the CPU's, and do not depend on how a prompt is cut") {
  model::ModelConfig c = small_config();
  c.head_dim = 24;
  c.hidden = 72;
  for (const std::string& kind : device::kinds())
    for (const DType type : {DType::kF16, DType::kBf16}) {
      if (kThreadSanitizer && type != DType::kBf16) continue;
      CAPTURE(kind);
      CAPTURE(model::name(type));
      const model::KvLayout layout{type, 16};
      Both both(device::open_kind(kind), layout, type, c, 7, type);
      const auto tokens = tokens_of(83, 1, c.vocab);
      const Blocks on_cpu(c, layout, 90), whole(c, layout, 90), parts(c, layout, 90);
      const auto want = prefill(both.cpu, on_cpu, tokens);
      const auto got = prefill(*both.gpu, whole, tokens, 83);
      CHECK(prefill(*both.gpu, parts, tokens, 19) == got);
      CHECK(whole.memory == parts.memory);
      double worst = 0, most = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        worst = std::max(worst, std::fabs(double{got[i]} - want[i]));
        most = std::max(most, std::fabs(double{want[i]}));
      }
      CHECK(most > 1);
      CHECK(worst < 0.02 * most);
    }
}

// Prompts longer than a split; a step computes their last row again.
TEST_CASE(
    "attention on the tensor cores: prompts are near the CPU's, and a step is bit for bit theirs") {
  model::ModelConfig c = small_config();
  c.head_dim = 32;
  c.heads = 3;
  c.kv_heads = 1;
  c.layers = 2;
  c.hidden = c.intermediate = 32;
  c.vocab = 40;
  for (const DType kv_type : {DType::kF16, DType::kBf16}) {
    if (kThreadSanitizer && kv_type != DType::kBf16) continue;
    CAPTURE(model::name(kv_type));
    const model::KvLayout layout{kv_type, 16};
    Both both(device::open_kind("stand-in"), layout, DType::kBf16, c, 7, DType::kBf16);
    std::vector<Blocks> kv;
    std::vector<model::Slice> slices;
    std::vector<int32_t> last, want;
    for (const size_t n : {5u, 270u, 530u}) {  // one split, two, and three where four have room
      const auto tokens = tokens_of(n, n, c.vocab);
      kv.emplace_back(c, layout, n);
      const Blocks on_cpu(c, layout, n), whole(c, layout, n);
      const auto all = prefill(*both.gpu, whole, tokens, n);
      CHECK(prefill(*both.gpu, kv.back(), tokens, 101) == all);
      CHECK(kv.back().memory == whole.memory);
      const auto near = prefill(both.cpu, on_cpu, tokens);
      double worst = 0, most = 0;
      for (size_t i = 0; i < near.size(); ++i) {
        worst = std::max(worst, std::fabs(double{all[i]} - near[i]));
        most = std::max(most, std::fabs(double{near[i]}));
      }
      CHECK(worst < 0.03 * most);
      std::vector<float> row(all.end() - static_cast<long>(c.vocab), all.end());
      want.push_back(model::sample(row, {}));
      last.push_back(tokens.back());
      slices.push_back(kv.back().slice(n - 1, n));
      const model::Slice one = slices.back();
      Pass pass = must(both.gpu->begin({&last.back(), 1}, {&one, 1}));
      for (uint32_t l = 0; l < c.layers; ++l) must(both.gpu->layer(pass, l));
      const auto again = must(both.gpu->logits(pass));
      CHECK(again == row);
    }
    CHECK(must(both.gpu->step(last, slices, std::vector<Choice>(3))) == want);
  }
}

TEST_CASE("activations of a format that the weights or the model do not have are refused") {
  const auto device = device::open_kind("stand-in");
  model::ThreadPool threads(1);
  model::ModelConfig c = small_config();
  const auto refused = [&](DType weights) {
    const auto opened = Transformer::open(device, c, model::random_sources(c, 1), weights,
                                          {DType::kF32, 16}, threads, {DType::kBf16});
    REQUIRE_FALSE(opened.has_value());
    return opened.error().what;
  };
  CHECK(refused(DType::kF32) == "activations of bf16 want weights of bf16");
  c.intermediate = 60;
  CHECK(refused(DType::kBf16).find("eights") != std::string::npos);
}
