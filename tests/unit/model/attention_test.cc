// The kernels of attention by pairs of bf16 and by integers: any number of queries, each with what
// it sees.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/random.h"
#include "model/files/kv_format.h"
#include "model/kernels/kernels.h"

using namespace mc;
using namespace mc::model;

namespace mc::attention_test {
namespace {

constexpr uint32_t kTiles = 3;

std::vector<float> numbers(uint64_t seed, size_t n, double most) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(random.uniform(-most, most));
  return values;
}

// Queries of one head, the keys and values of three tiles, and what each query sees of a tile.
struct Scene {
  Scene(uint32_t count_, uint32_t wide_, uint32_t last_, float cap_ = 0)
      : count(count_), wide(wide_), last(last_), cap(cap_) {
    queries = numbers(1, size_t{count} * wide, 1);
    const size_t n = size_t{kTiles} * kTile * wide;
    for (auto* rows : {&keys, &values}) {
      const auto exact = numbers(rows == &keys ? 2 : 3, n, 1);
      rows->resize(n * 2);
      from_floats(DType::kBf16, exact.data(), rows->data(), n);
    }
  }
  uint32_t positions(uint32_t tile) const { return tile + 1 == kTiles ? last : kTile; }
  // Of the first tile a query sees what a window leaves, of the last what came before it.
  SeenKeys seen(uint32_t tile, uint32_t query) const {
    const uint32_t end = positions(tile);
    if (tile == 0) return {query * 5 % kTile, end};
    return {0, tile + 1 == kTiles ? 1 + query * 7 % end : end};
  }
  float number(const std::vector<std::byte>& rows, uint32_t position, uint32_t d) const {
    float v;
    to_floats(DType::kBf16, rows.data() + (size_t{position} * wide + d) * 2, &v, 1);
    return v;
  }
  uint32_t count, wide, last;
  float cap;
  float* scale(uint32_t tile, uint32_t group, uint32_t position) {
    return &scales[(tile * (wide / 32) + group) * kTile + position];
  }
  std::vector<float> queries;
  std::vector<std::byte> keys, values;  // [position][wide] of bf16
  std::vector<float> scales;            // of the values, [tile][wide / 32][kTile], or none
};

struct Pointers {
  Pointers(const Scene& s, const std::vector<std::byte>& from, uint32_t tile)
      : zeros(size_t{s.wide} * 2) {
    for (uint32_t t = 0; t < kTile; ++t)
      rows[t] = t < s.positions(tile) ? from.data() + (size_t{tile} * kTile + t) * s.wide * 2
                                      : zeros.data();
  }
  std::vector<std::byte> zeros;
  const std::byte* rows[kTile];
};

// `lie`: keys and values as they lie, instead of laid out.
std::vector<float> by_pairs(const Kernels& set, const Scene& s, uint32_t first, uint32_t count,
                            bool lie = false) {
  std::vector<uint16_t> queries(s.queries.size());
  set.round(s.queries.data(), s.queries.size(), queries.data());
  std::vector<float> sums(size_t{count} * s.wide);
  std::vector<Attention> states(count);
  for (uint32_t i = 0; i < count; ++i) states[i].values = &sums[size_t{i} * s.wide];
  for (uint32_t tile = 0; tile < kTiles; ++tile) {
    const Pointers keys(s, s.keys, tile), values(s, s.values, tile);
    std::vector<std::byte> turned(size_t{kTile} * s.wide * 2), mixed(turned.size());
    std::vector<float> scores(size_t{count} * kTile, 1e30f);
    set.turn_words(keys.rows, s.positions(tile), s.wide / 2, 0, turned.data(),
                   size_t{s.wide} * kLanes * 2, keys.rows);
    set.pair_rows(false, values.rows, s.positions(tile), s.wide, mixed.data(), values.rows);
    PairScores job;
    job.queries = queries.data() + size_t{first} * s.wide;
    job.count = count;
    if (lie)
      job.key_rows = {keys.rows, keys.rows};
    else
      job.keys = turned.data();
    job.positions = s.positions(tile);
    job.wide = s.wide;
    job.scores = scores.data();
    set.score_pairs(job);
    std::vector<SeenKeys> seen;
    for (uint32_t i = 0; i < count; ++i) seen.push_back(s.seen(tile, first + i));
    PairValues mix;
    mix.scores = scores.data();
    mix.seen = seen.data();
    mix.count = count;
    if (lie)
      mix.value_rows = {values.rows, values.rows};
    else
      mix.values = mixed.data();
    mix.positions = s.positions(tile);
    mix.scales = s.scales.empty() ? nullptr : &s.scales[tile * s.wide / 32 * kTile];
    mix.wide = s.wide;
    mix.cap = s.cap;
    mix.states = states.data();
    set.add_pair_values(mix);
  }
  for (uint32_t i = 0; i < count; ++i)
    for (uint32_t d = 0; d < s.wide; ++d) sums[size_t{i} * s.wide + d] /= states[i].total;
  return sums;
}

// In double precision, and how far rounding may be off: a query and a share by 1/512 of themselves.
void check_near(const Scene& s, const std::vector<float>& got) {
  for (uint32_t i = 0; i < s.count; ++i) {
    std::vector<double> mean(s.wide);
    double total = 0, sizes = 0;
    for (uint32_t tile = 0; tile < kTiles; ++tile)
      for (uint32_t t = s.seen(tile, i).begin; t < s.seen(tile, i).end; ++t) {
        double score = 0, size = 0;
        for (uint32_t d = 0; d < s.wide; ++d) {
          const double product =
              double{s.queries[size_t{i} * s.wide + d]} * s.number(s.keys, tile * kTile + t, d);
          score += product;
          size += std::fabs(product);
        }
        sizes = std::max(sizes, size);
        if (s.cap > 0) score = double{s.cap} * std::tanh(score / double{s.cap});
        total += std::exp(score);
        for (uint32_t d = 0; d < s.wide; ++d)
          mean[d] += std::exp(score) * s.number(s.values, tile * kTile + t, d);
      }
    const double bound = 2 * (sizes + 1) / 512;  // values are up to 1
    for (uint32_t d = 0; d < s.wide; ++d)
      REQUIRE(std::fabs(got[size_t{i} * s.wide + d] - mean[d] / total) < bound);
  }
}

TEST_CASE("attention by pairs: every set has the same bits, which are near those of doubles") {
  for (const uint32_t wide : {32u, 64u, 96u})
    for (const uint32_t last : {1u, 2u, 15u, 16u, 17u, 33u, 48u, 49u, 63u, 64u})
      for (const uint32_t count : {1u, 2u, 3u, 4u, 7u, 16u}) {
        const Scene s(count, wide, last, last % 2 == 0 ? 1.5f : 0.0f);
        const auto want = by_pairs(*kernels_named("plain"), s, 0, count);
        check_near(s, want);
        for (const Kernels* set : kernels_here()) {
          CAPTURE(set->name);
          REQUIRE(by_pairs(*set, s, 0, count) == want);
          REQUIRE(by_pairs(*set, s, 0, count, true) == want);
        }
      }
}

TEST_CASE("attention by pairs: a query's bits do not depend on who is computed with it") {
  const Scene s(9, 64, 37);
  for (const Kernels* set : kernels_here()) {
    const auto all = by_pairs(*set, s, 0, s.count);
    for (uint32_t first = 0; first < s.count; ++first)
      for (uint32_t n = 1; first + n <= s.count; ++n) {
        const auto some = by_pairs(*set, s, first, n);
        REQUIRE(std::memcmp(some.data(), &all[size_t{first} * 64], some.size() * 4) == 0);
      }
  }
}

// Infinite keys, values and scales where query `q` does not see them; others may.
Scene with_infinite(Scene s, uint32_t q) {
  const uint16_t infinite = 0x7F80;
  for (uint32_t tile = 0; tile < kTiles; ++tile)
    for (uint32_t t = 0; t < s.positions(tile); ++t) {
      if (t >= s.seen(tile, q).begin && t < s.seen(tile, q).end) continue;
      for (auto* rows : {&s.keys, &s.values})
        for (uint32_t d = 0; d < s.wide; ++d)
          std::memcpy(&(*rows)[((size_t{tile} * kTile + t) * s.wide + d) * 2], &infinite, 2);
      for (uint32_t g = 0; !s.scales.empty() && g < s.wide / 32; ++g)
        *s.scale(tile, g, t) = std::numeric_limits<float>::infinity();
    }
  return s;
}

TEST_CASE("attention by pairs: what a query does not see may be infinite") {
  for (const auto& [last, scaled] : {std::pair(37u, false), {64u, false}, {37u, true}}) {
    Scene s(9, 96, last);
    if (scaled) s.scales = numbers(5, size_t{kTiles} * 3 * kTile, 1);
    for (const Kernels* set : kernels_here()) {
      CAPTURE(set->name);
      const auto want = by_pairs(*set, s, 0, s.count);
      REQUIRE(want == by_pairs(*kernels_named("plain"), s, 0, s.count));
      for (uint32_t q = 0; q < s.count; ++q)
        for (const bool lie : {false, true}) {
          if (lie && scaled) continue;
          CAPTURE(q);
          const auto got = by_pairs(*set, with_infinite(s, q), 0, s.count, lie);
          REQUIRE(std::memcmp(&got[size_t{q} * 96], &want[size_t{q} * 96], 96 * 4) == 0);
        }
    }
  }
}

TEST_CASE("rows are turned word by word, and paired number by number, in every set") {
  Random random(4);
  std::vector<std::byte> bytes(size_t{48} * 256);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.below(256));
  const std::byte* rows[48];
  for (uint32_t i = 0; i < 48; ++i) rows[i] = &bytes[size_t{i} * 256];
  for (const Kernels* set : kernels_here())
    for (const uint32_t words : {8u, 16u, 24u, 64u}) {
      std::vector<uint32_t> turned(size_t{48} * words);
      set->turn_words(rows, 33, words, 0x80808080, reinterpret_cast<std::byte*>(turned.data()),
                      size_t{words} * 64, rows);
      for (uint32_t i = 0; i < 48; ++i)
        for (uint32_t w = 0; w < words; ++w) {
          uint32_t word;
          std::memcpy(&word, rows[i] + size_t{4} * w, 4);
          REQUIRE(turned[(i / 16 * words + w) * 16 + i % 16] == (word ^ 0x80808080));
        }
      std::vector<uint16_t> pairs(size_t{4} * 96);
      for (const bool integers : {false, true}) {
        set->pair_rows(integers, rows, 3, 96, reinterpret_cast<std::byte*>(pairs.data()), rows);
        for (uint32_t i = 0; i < pairs.size(); ++i) {
          const std::byte* const row = rows[i / 192 * 2 + i % 2];
          const uint32_t number = i % 192 / 2;
          uint16_t want;
          std::memcpy(&want, row + size_t{2} * number, 2);
          if (integers) want = to_bf16(static_cast<float>(static_cast<int8_t>(row[number])));
          REQUIRE(pairs[i] == want);
        }
      }
    }
}

}  // namespace
}  // namespace mc::attention_test
