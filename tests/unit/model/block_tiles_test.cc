// The kernels of AMX, on a stand-in for its tiles. On a CPU that has them, all tests of kernels go
// over the tiles themselves as well.
#if defined(__x86_64__)
#include <doctest/doctest.h>

#include <optional>

#include "block_products.h"
#include "model/forward/transformer.h"
#include "model/kernels/kernels_x86.h"
#include "model/kernels/scratch.h"
#include "run.h"
#include "tests/slow.h"

MC_TARGET_BEGIN("avx512f,avx512dq,avx512bw,avx512vnni,fma")

namespace mc::model::stand_in {
namespace {

#include "model/kernels/kernels_lanes512.h"

#include "model/kernels/block_words512.h"

#include "model/kernels/block_tiles_body.h"

#include "plain_tiles.h"

const BlockKernels kTilesOfPlain{round_for_tiles, multiply_on_tiles<PlainTiles>, kTileRows};

}  // namespace
}  // namespace mc::model::stand_in

MC_TARGET_END

using namespace mc;
using namespace mc::model;

namespace {

// No set: this CPU cannot run what surrounds the tiles.
std::optional<Kernels> kernels_of_plain_tiles() {
  const Kernels* const wide = kernels_named("avx512");
  if (wide == nullptr || !__builtin_cpu_supports("avx512vnni")) {
    MESSAGE("not run: no AVX-512 with VNNI");
    return std::nullopt;
  }
  Kernels set = *wide;
  set.name = "plain tiles";
  set.blocks = &stand_in::kTilesOfPlain;
  return set;
}

}  // namespace

TEST_CASE("tiles: products of every format have the bits of the plain kernels") {
  const auto set = kernels_of_plain_tiles();
  if (!set) return;
  constexpr uint32_t kRows = 75;
  ThreadPool one(1), three(3);
  for (const BlockFormat& f : block_formats())
    for (const uint32_t columns : {uint32_t{f.elements}, 3u * f.elements, 768u, 2304u}) {
      if (kThreadSanitizer && columns > 700) continue;
      CAPTURE(f.name);
      CAPTURE(columns);
      const auto bytes = test::moderate_blocks(f, size_t{kRows} * columns / f.elements);
      const BlockRows part = test::rows_in(f, kRows, columns, bytes);
      const uint32_t segments = columns == 768 ? 8 : 1;
      const Matrix m = Matrix::pack_blocks(columns, segments, {&part, 1}, one);
      for (const size_t count : {15u, 16u, 47u}) {
        const auto x = test::random_numbers(f.ggml, count * columns);
        REQUIRE(test::product(m, *set, three, x) ==
                test::product(m, *kernels_named("plain"), one, x));
      }
    }
  CHECK(!stand_in::tiles_misused);
}

TEST_CASE("tiles: the largest integers are added exactly") {
  const auto set = kernels_of_plain_tiles();
  if (!set) return;
  constexpr uint32_t kColumns = 256, kRows = 16, kCount = 16;
  ThreadPool threads(1);
  const BlockFormat& f = *block_format_numbered(8);  // Q8_0: a scale of 1, and 32 times -128
  std::vector<std::byte> bytes(size_t{kRows} * kColumns / f.elements * f.bytes, std::byte{0x80});
  for (size_t at = 0; at < bytes.size(); at += f.bytes)
    bytes[at] = std::byte{0}, bytes[at + 1] = std::byte{0x3C};
  const BlockRows part = test::rows_in(f, kRows, kColumns, bytes);
  const Matrix m = Matrix::pack_blocks(kColumns, 1, {&part, 1}, threads);
  std::vector<float> x(kCount * kColumns, -127.0f);
  for (size_t i = 0; i < x.size() / 2; ++i) x[i] = 127;
  const auto y = test::product(m, *set, threads, x);
  for (size_t i = 0; i < y.size(); ++i)
    CHECK(y[i] == (i < y.size() / 2 ? -1.0f : 1.0f) * 128 * 127 * kColumns);
}

TEST_CASE("tiles: infinite and missing numbers have the bits of the plain kernels") {
  const auto set = kernels_of_plain_tiles();
  if (!set) return;
  ThreadPool threads(1);
  const test::OddNumbers odd(threads);
  for (uint32_t at = 0; at < kGroup; ++at)
    for (const auto& x : odd.rows(33, at)) {
      CAPTURE(at);
      CHECK(test::same_numbers(test::product(odd.matrix, *set, threads, x),
                               test::product(odd.matrix, *kernels_named("plain"), threads, x)));
    }
}

// Attention to KV of 8 bits multiplies by the same kernels.
TEST_CASE("tiles: a model with KV of 8 bits has the logits of the plain kernels") {
  const auto set = kernels_of_plain_tiles();
  if (!set) return;
  ThreadPool threads(2);
  ModelConfig c;
  c.vocab = 61, c.hidden = 64, c.intermediate = 96, c.layers = 2;
  c.heads = 4, c.kv_heads = 2, c.head_dim = 48, c.context_max = 1000;
  const WeightSources sources = random_sources(c, 7);
  Random random(4);
  std::vector<int32_t> tokens(90);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(c.vocab));
  const auto logits = [&](const Kernels& kernels, size_t chunk) {
    const Transformer t(c, pack_weights(sources, DType::kF32, threads), {KvFormat::q8(), 16},
                        kernels, threads);
    return test::Sequence(t, tokens.size()).add(tokens, chunk);
  };
  const auto want = logits(*kernels_named("plain"), tokens.size());
  for (const size_t chunk : {7u, 24u, 90u}) {
    CAPTURE(chunk);
    CHECK(logits(*set, chunk) == want);
  }
  CHECK(!stand_in::tiles_misused);
}
#endif
