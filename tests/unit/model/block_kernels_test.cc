#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "block_products.h"
#include "model/forward/transformer.h"
#include "reference.h"
#include "run.h"

using namespace mc;
using namespace mc::model;

namespace {

std::vector<float> product(const Matrix& m, const char* kernels, ThreadPool& threads,
                           std::span<const float> x) {
  return test::product(m, *kernels_named(kernels), threads, x);
}

}  // namespace

TEST_CASE("block kernels: packed rows are read bit for bit, also where formats are mixed") {
  constexpr uint32_t kColumns = 512, kRows = 37;
  ThreadPool threads(2);
  std::vector<std::vector<std::byte>> bytes;
  for (const BlockFormat& f : block_formats())
    bytes.push_back(test::seeded_blocks(f, kRows * kColumns / f.elements));
  std::vector<BlockRows> parts;
  for (size_t i = 0; i < bytes.size(); ++i)
    parts.push_back(test::rows_in(block_formats()[i], kRows, kColumns, bytes[i]));
  const Matrix m = Matrix::pack_blocks(kColumns, 8, parts, threads);
  REQUIRE(m.rows() == kRows * parts.size());
  for (uint32_t n = 0; n < m.rows(); ++n) {
    const BlockFormat& f = *parts[n / kRows].format;
    std::vector<float> want(kColumns), got(kColumns);
    std::vector<std::byte> scratch;
    dequantize(f, parts[n / kRows].row(n % kRows, scratch), want.data(), kColumns / f.elements);
    m.row(n, got.data());
    CAPTURE(f.name);
    REQUIRE(std::memcmp(got.data(), want.data(), kColumns * sizeof(float)) == 0);
  }
}

TEST_CASE("block kernels: every instruction set, batch and number of threads gives the same bits") {
  constexpr uint32_t kColumns = 768, kRows = 75;
  ThreadPool one(1), three(3);
  for (const BlockFormat& f : block_formats()) {
    CAPTURE(f.name);
    const auto bytes = test::moderate_blocks(f, kRows * kColumns / f.elements);
    const BlockRows part = test::rows_in(f, kRows, kColumns, bytes);
    const Matrix m = Matrix::pack_blocks(kColumns, 8, {&part, 1}, one);
    const auto x = test::random_numbers(f.ggml, 31 * kColumns);  // chunks of 16, 8, 4, 2 and 1
    const auto want = product(m, "plain", one, x);
    for (const Kernels* set : kernels_here()) {
      CAPTURE(set->name);
      REQUIRE(product(m, set->name, three, x) == want);
      for (const size_t row : {0u, 15u, 16u, 29u, 30u}) {
        const auto alone =
            product(m, set->name, one, std::span(x).subspan(row * kColumns, kColumns));
        REQUIRE(std::equal(alone.begin(), alone.end(), &want[row * kRows]));
      }
    }
  }
}

// What is multiplied is off by half a step of its group at most, and everything else is rounded as
// floats are.
TEST_CASE("block kernels: products are as near as rounding to 8 bits allows") {
  constexpr uint32_t kColumns = 512, kRows = 20, kCount = 3;
  ThreadPool threads(1);
  for (const BlockFormat& f : block_formats()) {
    CAPTURE(f.name);
    const auto bytes = test::moderate_blocks(f, kRows * kColumns / f.elements);
    const BlockRows part = test::rows_in(f, kRows, kColumns, bytes);
    const Matrix m = Matrix::pack_blocks(kColumns, 8, {&part, 1}, threads);
    auto x = test::random_numbers(99, kCount * kColumns);
    std::fill(x.begin(), x.begin() + 64, 0.0f);  // groups of nothing
    const auto y = product(m, "auto", threads, x);
    std::vector<float> row(kColumns);
    for (uint32_t n = 0; n < kRows; ++n) {
      m.row(n, row.data());
      for (uint32_t r = 0; r < kCount; ++r) {
        double want = 0, allowed = 0, size = 0;
        for (uint32_t g = 0; g < kColumns / kGroup; ++g) {
          float most = 0;
          for (uint32_t i = 0; i < kGroup; ++i)
            most = std::max(most, std::fabs(x[r * kColumns + g * kGroup + i]));
          for (uint32_t i = 0; i < kGroup; ++i) {
            const double w = row[g * kGroup + i], v = double{x[r * kColumns + g * kGroup + i]};
            want += w * v;
            allowed += std::fabs(w) * most / 127 * 0.5;
            size += std::fabs(w) * most;
          }
        }
        CHECK(std::fabs(y[r * kRows + n] - want) <= allowed * 1.001 + size * 1e-4);
      }
    }
  }
}

TEST_CASE("block kernels: infinite and missing numbers give the same bits everywhere") {
  ThreadPool threads(1);
  const test::OddNumbers odd(threads);
  for (const uint32_t count : {1u, 8u, 16u})
    for (uint32_t at = 0; at < kGroup; ++at)
      for (const auto& x : odd.rows(count, at)) {
        const auto want = product(odd.matrix, "plain", threads, x);
        for (const Kernels* set : kernels_here()) {
          CAPTURE(set->name);
          CAPTURE(at);
          CHECK(test::same_numbers(product(odd.matrix, set->name, threads, x), want));
        }
      }
}

TEST_CASE("block kernels: a number that is none does not count for its group's scale") {
  ThreadPool threads(1);
  const test::OddNumbers odd(threads);
  for (const Kernels* set : kernels_here())
    for (const uint32_t count : {1u, 8u, 16u})
      for (uint32_t at = 0; at < kGroup; ++at) {
        auto x = test::random_numbers(1, size_t{count} * odd.matrix.columns());
        for (uint32_t r = 0; r < count; ++r) {
          auto* const group = &x[size_t{r} * odd.matrix.columns()];
          group[(at + 16) % kGroup] = 1;
          group[at] = -1;
        }
        const auto want = product(odd.matrix, set->name, threads, x);
        for (uint32_t r = 0; r < count; ++r)
          x[size_t{r} * odd.matrix.columns() + at] = std::numeric_limits<float>::quiet_NaN();
        CAPTURE(set->name);
        CAPTURE(at);
        CHECK(product(odd.matrix, set->name, threads, x) == want);
      }
}

namespace {

// Rows as Q8_0, or as Q4_1, in the simplest way.
std::vector<std::byte> quantized(const Source& s, bool q8) {
  std::vector<std::byte> out;
  std::vector<float> row(s.columns);
  const auto put = [&](const void* from, size_t n) {
    const auto* const bytes = static_cast<const std::byte*>(from);
    out.insert(out.end(), bytes, bytes + n);
  };
  for (uint32_t n = 0; n < s.rows; ++n) {
    s.read(n, row.data());
    for (uint32_t at = 0; at < s.columns; at += kGroup) {
      const auto [low, high] = std::minmax_element(row.begin() + at, row.begin() + at + kGroup);
      const float step = q8 ? std::max(-*low, *high) / 127 : (*high - *low) / 15;
      const float from = q8 ? 0 : *low;
      const std::array<uint16_t, 2> bits = {to_f16(step), to_f16(from)};
      put(bits.data(), q8 ? 2 : 4);
      std::array<uint8_t, kGroup> q{};
      for (uint32_t i = 0; i < kGroup; ++i)
        q[i] = static_cast<uint8_t>(static_cast<int>(std::lround((row[at + i] - from) / step)));
      if (q8) put(q.data(), kGroup);
      for (uint32_t i = 0; !q8 && i < 16; ++i) {
        const auto both = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
        put(&both, 1);
      }
    }
  }
  return out;
}

}  // namespace

// docs/engine.md: what the engine guarantees.
TEST_CASE("block kernels: a quantized model's logits do not depend on how they were computed") {
  ThreadPool one(1), three(3);
  ModelConfig c;
  c.vocab = 101, c.hidden = 64, c.intermediate = 96, c.layers = 2;
  c.heads = 4, c.kv_heads = 2, c.head_dim = 16, c.context_max = 1000;
  WeightSources sources = random_sources(c, 7);
  std::vector<std::vector<std::byte>> memory;
  memory.reserve(100);
  const auto quantize = [&](Source& s, bool q8) {
    memory.push_back(quantized(s, q8));
    s.blocks = {
        test::rows_in(*block_format_numbered(q8 ? 8 : 3), s.rows, s.columns, memory.back())};
  };
  quantize(sources.embedding, true);
  quantize(sources.head, true);
  for (LayerSources& l : sources.layers)
    for (Source* s : {&l.qkv, &l.output, &l.gate_up, &l.down}) quantize(*s, false);
  const auto make = [&](const char* kernels, ThreadPool& threads, uint32_t block) {
    return Transformer(c, pack_weights(sources, DType::kF32, threads), {DType::kF32, block},
                       *kernels_named(kernels), threads);
  };
  Random random(4);
  std::vector<int32_t> tokens(90);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(c.vocab));
  const Transformer plain = make("plain", one, 16);
  test::Sequence whole(plain, tokens.size());
  const auto want = whole.add(tokens, tokens.size());
  for (const Kernels* set : kernels_here())
    for (const size_t chunk : {1u, 7u, 90u}) {
      CAPTURE(set->name);
      CAPTURE(chunk);
      const Transformer t = make(set->name, three, 7);
      test::Sequence s(t, tokens.size());
      CHECK(s.add(tokens, chunk) == want);
    }
  double most = 0;
  size_t i = 0;
  for (const test::Vector& row : test::reference(c, plain.weights(), tokens))
    for (const double v : row) most = std::max(most, std::fabs(want[i++] - v));
  CHECK(most > 1e-4);  // what is multiplied is rounded
  CHECK(most < 0.1);
}

TEST_CASE("weights of f16 stay so, and give the bits that their numbers in f32 give") {
  constexpr uint32_t kColumns = 88, kRows = 75, kCount = 11;
  ThreadPool threads(2);
  const auto read = [](uint32_t n, float* out) {
    const auto row = test::random_numbers(n, kColumns);
    for (uint32_t i = 0; i < kColumns; ++i) out[i] = from_f16(to_f16(row[i]));
  };
  const Matrix halves = Matrix::pack(kRows, kColumns, DType::kF16, 8, read, threads);
  const Matrix floats = Matrix::pack(kRows, kColumns, DType::kF32, 8, read, threads);
  CHECK(halves.bytes() * 2 == floats.bytes());
  const auto x = test::random_numbers(1000, kCount * kColumns);
  const auto want = product(floats, "plain", threads, x);
  for (const Kernels* set : kernels_here()) {
    CAPTURE(set->name);
    CHECK(product(halves, set->name, threads, x) == want);
    CHECK(product(floats, set->name, threads, x) == want);
  }
  std::vector<float> a(kColumns), b(kColumns);
  halves.row(70, a.data());
  floats.row(70, b.data());
  CHECK(a == b);
}
