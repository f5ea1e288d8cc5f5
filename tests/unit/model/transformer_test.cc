#include "model/forward/transformer.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/random.h"
#include "model/forward/sampler.h"
#include "reference.h"
#include "run.h"
#include "tests/slow.h"

using namespace mc;
using namespace mc::model;

namespace {

ModelConfig small(uint32_t heads = 6, uint32_t kv_heads = 2, uint32_t head_dim = 20) {
  ModelConfig c;
  c.vocab = 101;
  c.hidden = 52;
  c.intermediate = 72;
  c.layers = 3;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.context_max = 1000;
  return c;
}

std::vector<int32_t> tokens_of(uint64_t seed, size_t n, uint32_t vocab) {
  Random random(seed);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(random.below(vocab)));
  return tokens;
}

Transformer make(const ModelConfig& c, KvLayout kv, ThreadPool& threads, DType type = DType::kF32,
                 const Kernels* kernels = kernels_named("auto"), DType factors = DType::kF32) {
  return {c, random_weights(c, 7, type, threads), kv, *kernels, threads, factors};
}

double worst(const std::vector<float>& got, const std::vector<test::Vector>& want) {
  double most = 0;
  size_t i = 0;
  for (const test::Vector& row : want)
    for (const double v : row) most = std::max(most, std::fabs(got[i++] - v));
  REQUIRE(i == got.size());
  return most;
}

}  // namespace

TEST_CASE(
    "logits agree with a double-precision reference, over heads, rotations, families and heads "
    "tied") {
  ThreadPool threads(2);
  std::vector<ModelConfig> configs = {small(), small(4, 4, 16), small(8, 1, 34), small(6, 2, 16)};
  configs[3].family = Family::kQwen2;
  configs[3].rope = {
      .scaling = RopeScaling::kYarn, .factor = 4, .original_context = 64, .scale = 1.14};
  configs[1].tied = true;
  configs[1].rope.scaling = RopeScaling::kLinear;
  configs[1].rope.factor = 4;
  configs[2].rope = {.theta = 5000,
                     .scaling = RopeScaling::kLlama3,
                     .factor = 8,
                     .low_freq_factor = 1,
                     .high_freq_factor = 4,
                     .original_context = 64};
  configs.resize(enough_for_races(configs.size()));
  for (const ModelConfig& c : configs) {
    CAPTURE(c.heads);
    const auto tokens = tokens_of(c.heads, 150, c.vocab);
    for (const DType type : {DType::kF32, DType::kBf16}) {
      const Transformer t = make(c, {DType::kF32, 16}, threads, type);
      const auto want = test::reference(c, t.weights(), tokens);
      test::Sequence s(t, tokens.size());
      CHECK(worst(s.add(tokens, tokens.size()), want) < 2e-4);
      if (type != DType::kF32) continue;
      const Transformer half = make(c, {DType::kF16, 16}, threads);
      test::Sequence rounded(half, tokens.size());
      CHECK(worst(rounded.add(tokens, tokens.size()), want) < 2e-2);
    }
  }
}

TEST_CASE("however a prompt is cut, into chunks or into blocks, its bits are the same") {
  ThreadPool one(1), three(3);
  const ModelConfig c = small();
  const auto tokens = tokens_of(1, 200, c.vocab);
  for (const DType kv : {DType::kF32, DType::kBf16}) {
    const Transformer t = make(c, {kv, 16}, one);
    test::Sequence whole(t, tokens.size());
    const auto want = whole.add(tokens, tokens.size());
    for (const size_t chunk : {1u, 5u, 16u, 64u, 127u}) {
      test::Sequence s(t, tokens.size());
      CHECK(s.add(tokens, chunk) == want);
      CHECK(s.kv(0) == whole.kv(0));
      CHECK(s.kv(1) == whole.kv(1));
    }
    for (const uint32_t block : {1u, 7u, 256u}) {
      const Transformer other = make(c, {kv, block}, three);
      test::Sequence s(other, tokens.size());
      CHECK(s.add(tokens, 50) == want);
    }
  }
}

// KV and factors, and how far logits of up to 4 are from those of exact products with KV of f32.
struct RoundedWay {
  KvFormat kv;
  DType factors;
  double off;
};
const RoundedWay kRoundedWays[] = {{DType::kBf16, DType::kBf16, 0.1},
                                   {KvFormat::q8(), DType::kF32, 0.1}};

TEST_CASE(
    "attention of bf16 and of integers: sets, chunks, blocks and threads give the same bits") {
  ThreadPool one(1), three(3);
  std::vector<ModelConfig> configs = {small(), small(8, 1, 34), small(4, 2, 64)};
  configs.resize(enough_for_races(configs.size()));
  for (const ModelConfig& c : configs) {
    CAPTURE(c.head_dim);
    const auto tokens = tokens_of(8, 130, c.vocab);  // as a whole, 64 rows share a tile
    const Transformer exact = make(c, {DType::kF32, 16}, one);
    const auto reference = test::reference(c, exact.weights(), tokens);
    for (const RoundedWay& way : kRoundedWays) {
      CAPTURE(name(way.kv));
      const auto logits = [&](const Kernels* set, uint32_t block, size_t chunk,
                              ThreadPool& threads) {
        const Transformer t = make(c, {way.kv, block}, threads, DType::kF32, set, way.factors);
        test::Sequence s(t, tokens.size());
        return s.add(tokens, chunk);
      };
      const auto want = logits(kernels_named("plain"), 16, tokens.size(), one);
      for (const Kernels* set : kernels_here()) {
        CAPTURE(set->name);
        CHECK(logits(set, 7, 70, three) == want);
      }
      for (const size_t chunk : {1u, 5u, 64u})
        CHECK(logits(kernels_named("auto"), 256, chunk, one) == want);
      const double off = worst(want, reference);
      CHECK(off < way.off);
      CHECK(off > 2e-4);  // it is rounded
    }
  }
}

// The weights with queries, keys and values in blocks of Q8_0: 32 numbers, as a group of q8 has
// them.
Weights with_blocks(const ModelConfig& c, ThreadPool& threads) {
  Weights w = random_weights(c, 7, DType::kF32, threads);
  for (LayerWeights& layer : w.layers) {
    const Matrix whole = std::move(layer.qkv);
    const BlockRows rows{block_format_numbered(8), whole.rows(),
                         [&](uint32_t n, std::vector<std::byte>& scratch) {
                           std::vector<float> row(c.hidden);
                           whole.row(n, row.data());
                           scratch.resize(c.hidden / 32 * 34);
                           for (uint32_t g = 0; g < c.hidden / 32; ++g)
                             KvFormat::q8().write(&row[g * 32], 32, &scratch[g * 34]);
                           return static_cast<const std::byte*>(scratch.data());
                         }};
    layer.qkv = Matrix::pack_blocks(c.hidden, 1, {&rows, 1}, threads);
  }
  return w;
}

TEST_CASE("KV of bf16 is multiplied rounded where weights are: quantized ones, or by factors") {
  ThreadPool one(1);
  ModelConfig c = small(4, 2, 64);
  c.hidden = 64;
  const auto tokens = tokens_of(8, 100, c.vocab);
  const auto logits = [&](bool blocks, DType factors) {
    const Transformer t(c, blocks ? with_blocks(c, one) : random_weights(c, 7, DType::kF32, one),
                        {DType::kBf16, 16}, *kernels_named("auto"), one, factors);
    test::Sequence s(t, tokens.size());
    return s.add(tokens, tokens.size());
  };
  // Factors change nothing but attention here: weights are f32 or in blocks.
  CHECK(logits(false, DType::kF32) != logits(false, DType::kBf16));
  CHECK(logits(true, DType::kF32) == logits(true, DType::kBf16));
}

TEST_CASE("every instruction set computes the same bits") {
  ThreadPool threads(1);
  const ModelConfig c = small();
  const auto tokens = tokens_of(2, 90, c.vocab);
  for (const DType type : {DType::kF32, DType::kBf16}) {
    const Transformer plain = make(c, {DType::kF32, 16}, threads, type, kernels_named("plain"));
    test::Sequence want(plain, tokens.size());
    const auto logits = want.add(tokens, 90);
    for (const Kernels* set : kernels_here()) {
      CAPTURE(set->name);
      const Transformer t = make(c, {DType::kF32, 16}, threads, type, set);
      test::Sequence s(t, tokens.size());
      CHECK(s.add(tokens, 90) == logits);
    }
  }
  CHECK(kernels_named("quantum") == nullptr);
}

TEST_CASE("factors of bf16: every instruction set and chunking computes the same bits") {
  ThreadPool threads(2);
  ModelConfig c = small();
  c.intermediate = 84;  // parts of 21: an odd one ends in half a pair
  const auto tokens = tokens_of(5, 90, c.vocab);
  const auto logits = [&](const char* kernels, size_t chunk) {
    const Transformer t =
        make(c, {DType::kF32, 16}, threads, DType::kBf16, kernels_named(kernels), DType::kBf16);
    test::Sequence s(t, tokens.size());
    return s.add(tokens, chunk);
  };
  const auto want = logits("plain", 90);
  for (const Kernels* set : kernels_here())
    for (const size_t chunk : {1u, 7u, 90u}) {
      CAPTURE(set->name);
      CHECK(logits(set->name, chunk) == want);
    }
  const Transformer exact = make(c, {DType::kF32, 16}, threads, DType::kBf16);
  test::Sequence s(exact, tokens.size());
  const auto near = s.add(tokens, 90);
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i)
    most = std::max(most, std::fabs(double{want[i]} - near[i]));
  CHECK(most > 0);  // it is rounded
  CHECK(most < 0.1);
}

void check_batch(const Transformer& t) {
  const ModelConfig& c = t.config();
  constexpr size_t kSteps = 12;
  std::vector<test::Sequence> batch;
  std::vector<std::vector<int32_t>> alone, together;
  std::vector<int32_t> last;
  for (uint64_t i = 0; i < 11; ++i) {
    const auto prompt = tokens_of(100 + i, 3 + 17 * i, c.vocab);
    for (auto* all : {&alone, &together}) all->emplace_back();
    test::Sequence s(t, prompt.size() + kSteps);
    auto logits = s.add(prompt, 64);
    for (size_t n = 0; n < kSteps; ++n) {
      alone[i].push_back(sample(std::span(logits).last(c.vocab), {}));
      logits = s.add({alone[i].back()}, 1);
    }
    batch.emplace_back(t, prompt.size() + kSteps);
    logits = batch.back().add(prompt, 64);
    last.push_back(sample(std::span(logits).last(c.vocab), {}));
  }
  for (size_t n = 0; n < kSteps; ++n) {
    std::vector<float> x(batch.size() * c.hidden), logits(batch.size() * c.vocab);
    std::vector<Slice> slices;
    for (test::Sequence& s : batch) slices.push_back(s.next());
    t.embed(last, x.data());
    for (uint32_t l = 0; l < c.layers; ++l) t.layer(l, slices, x.data());
    t.logits(x.data(), batch.size(), logits.data());
    for (size_t i = 0; i < batch.size(); ++i) {
      together[i].push_back(last[i]);
      last[i] = sample(std::span(logits).subspan(i * c.vocab, c.vocab), {});
      batch[i].grow();
    }
  }
  CHECK(together == alone);
}

TEST_CASE("a batch of sequences decodes as each of them alone") {
  ThreadPool threads(2);
  const ModelConfig c = small();
  const Transformer exact = make(c, {DType::kBf16, 16}, threads);
  const Transformer pairs =
      make(c, {DType::kBf16, 16}, threads, DType::kF32, kernels_named("auto"), DType::kBf16);
  const Transformer integers = make(c, {KvFormat::q8(), 16}, threads);
  for (const Transformer* t : {&exact, &pairs, &integers}) check_batch(*t);
}

TEST_CASE("weights from one seed are always the same; another seed gives others") {
  ThreadPool one(1), four(4);
  const ModelConfig c = small();
  const auto row = [&](uint64_t seed, ThreadPool& threads) {
    const Weights w = random_weights(c, seed, DType::kF32, threads);
    std::vector<float> values(c.hidden);
    w.layers[1].down.row(3, std::vector<float>(c.intermediate).data());
    w.embedding.row(17, values.data());
    return values;
  };
  CHECK(row(5, one) == row(5, four));
  CHECK(row(5, one) != row(6, one));
  double squares = 0;
  for (const float v : row(5, one)) squares += double{v} * v;
  CHECK(squares == doctest::Approx(1).epsilon(0.5));  // variance 1 / columns
}

TEST_CASE("the built-in model has the shape its spec says") {
  const ModelConfig c = tiny_config();
  REQUIRE(check_config(c));
  CHECK(spec_of(c, DType::kBf16).kv_bytes_per_token() == cost::tiny().kv_bytes_per_token());
  CHECK(c.parameters() < 10'000'000);
}

TEST_CASE("drawing follows the probabilities, and repeats with seed and position") {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};
  const auto draw = [&](Draw d) {
    std::vector<float> row = logits;
    return sample(row, d);
  };
  CHECK(draw({}) == 1);  // the lowest of equal ones
  const std::vector<int32_t> never = {1, 99, -1};
  CHECK(draw({.never = never}) == 3);
  CHECK(draw({.temperature = 2, .top_k = 1}) == 1);
  CHECK(draw({.temperature = 2, .top_p = 0}) == 1);
  std::vector<int> seen(5), few(5), likely(5);
  constexpr int kDraws = 20000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    ++seen[static_cast<size_t>(draw({.temperature = 1, .seed = 9, .position = i}))];
    ++few[static_cast<size_t>(draw({.temperature = 1, .top_k = 3, .seed = 9, .position = i}))];
    ++likely[static_cast<size_t>(draw({.temperature = 1, .top_p = 0.5, .seed = i}))];
    CHECK(draw({.temperature = 1, .seed = 3, .position = i}) ==
          draw({.temperature = 1, .seed = 3, .position = i}));
  }
  const double total = std::exp(1) + 2 * std::exp(3) + std::exp(2) + std::exp(-1);
  for (size_t i = 0; i < 5; ++i)
    CHECK(seen[i] / double{kDraws} ==
          doctest::Approx(std::exp(logits[i]) / total).epsilon(0.1 + 20 / (seen[i] + 1.0)));
  CHECK(few[0] + few[4] == 0);
  CHECK(few[2] > 0);
  CHECK(likely[1] + likely[3] == kDraws);
}
