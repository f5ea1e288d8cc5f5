// Implements the products of block_kernels.h on tiles of AMX, for 16 rows at a time; VNNI computes
// what is left. Included behind block_words512.h, over a type T of tiles:
//
//   configure(TileConfig)  shapes of the eight tiles, and permission to use them until release()
//   zero<kTile>(), load<kTile>(from, stride), store<kTile>(to, stride)
//   dot<kSum, kX, kW>()    TDPBSSD: kSum[m][n] += sum over k and i of kX[m][4k + i] kW[k][4n + i]
//
// The integers of a group, less their offset, are a tile of weights as they lie in a panel; what
// they are multiplied by lies by row. A tile's sums are exact, and they are scaled and added in the
// order of block_kernels_body.h, so the bits are the same.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include "model/kernels/kernels_tails.h"

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kTurns = 4;  // tiles of sums that are in work at a time: 0 to 3

struct alignas(64) TileConfig {  // what LDTILECFG reads
  uint8_t palette = 1, start_row = 0, none[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 weights, of so many steps.
inline TileConfig tiles_of(uint32_t steps) {
  TileConfig c;
  for (uint32_t tile = 0; tile < 8; ++tile) {
    const bool x = tile == 4 || tile == 5, weights = tile > 5;
    c.rows[tile] = static_cast<uint8_t>(weights ? steps : kTileRows);
    c.row_bytes[tile] = static_cast<uint16_t>(x ? 4 * steps : 64);
  }
  return c;
}

// A panel made ready for tiles, in a thread's scratch memory: [group][step][column][4] signed
// integers, then [group][number][16] scales and minimums in the panel's order, as f32.
struct TilePanel {
  std::byte* integers;
  float* scales;
  size_t numbers;  // of a group

  static size_t bytes(const BlockJob& job) {
    return job.groups * (kGroup * kLanes + job.layout.numbers() * kLanes * sizeof(float));
  }
  TilePanel(const BlockJob& job, std::byte* memory)
      : integers(memory),
        scales(reinterpret_cast<float*>(memory + size_t{job.groups} * kGroup * kLanes)),
        numbers(job.layout.numbers()) {}
};

template <uint32_t kBits, uint32_t kStep>
[[gnu::always_inline]] inline void unpack_words(const std::byte* group, __m512i offset,
                                                std::byte* out) {
  if constexpr (kStep < 8) {
    const Words w = words_of<kBits, kStep>(group);
    _mm512_storeu_si512(out + 64 * kStep, _mm512_sub_epi8(w.v, offset));
    unpack_words<kBits, kStep + 1>(group, offset, out);
  }
}

template <uint32_t kBits>
void unpack_panel(const BlockJob& job, const std::byte* panel, const TilePanel& out) {
  const BlockFormat& f = *job.layout.format;
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(offset_of(kBits, f.halves, f.minimum)));
  const size_t group_bytes = job.layout.integer_bytes(), scale_bytes = job.layout.scale_bytes();
  const std::byte* const scales = panel + job.groups * group_bytes;
  for (uint32_t g = 0; g < job.groups; ++g) {
    if (job.ahead != 0)
      fetch_ahead<1>(panel + job.ahead + g * (group_bytes + scale_bytes), group_bytes + scale_bytes,
                     job.panel_bytes);
    unpack_words<kBits, 0>(panel + g * group_bytes, offset,
                           out.integers + size_t{g} * kGroup * kLanes);
    for (size_t i = 0; i < out.numbers; ++i)
      scales_at(scales + g * scale_bytes + i * (f.f16 ? 2 : 4) * kLanes, f.f16)
          .store(out.scales + (g * out.numbers + i) * kLanes);
  }
}

// What 16 rows and a panel are multiplied of: groups, or halves of these, one after the other.
template <class T, bool kHalves>
struct TileProducts {
  static constexpr uint32_t kParts = kHalves ? 2 : 1, kSteps = 8 / kParts;
  const TilePanel& panel;
  const RoundedRows& x;
  alignas(64) int32_t sums[kTurns][kTileRows][kLanes];

  TileProducts(const TilePanel& panel_, const RoundedRows& x_) : panel(panel_), x(x_) {}

  template <uint32_t kTurn>
  [[gnu::always_inline]] void multiply(uint32_t part) {
    constexpr uint32_t kX = 4 + kTurn % 2, kW = 6 + kTurn % 2;
    const int8_t* const rows = x.integers + size_t{part / kParts} * kTileRows * kGroup;
    T::template zero<kTurn>();
    T::template load<kX>(rows + part % kParts * 4 * kSteps, kGroup);
    T::template load<kW>(panel.integers + size_t{part} * kSteps * 64, 64);
    T::template dot<kTurn, kX, kW>();
    T::template store<kTurn>(sums[kTurn], 64);
  }
  [[gnu::always_inline]] void start(uint32_t part) {
    switch (part % kTurns) {
      case 0: return multiply<0>(part);
      case 1: return multiply<1>(part);
      case 2: return multiply<2>(part);
      default: return multiply<3>(part);
    }
  }
  V sum(uint32_t part, uint32_t row) const {
    return {_mm512_cvtepi32_ps(_mm512_load_si512(sums[part % kTurns][row]))};
  }
};

// Parts [begin, end) of the sums of 16 rows. A function of its own, as add_steps() is. A product
// takes long until it is stored: those of the next parts are begun meanwhile.
template <class T, bool kHalves, bool kMinimum>
[[gnu::noinline]] void add_tile_parts(const TilePanel& panel, const RoundedRows& x, uint32_t begin,
                                      uint32_t end, V (&tile)[kTileRows]) {
  TileProducts<T, kHalves> products(panel, x);
  constexpr uint32_t kParts = TileProducts<T, kHalves>::kParts;
  V sums[kTileRows];
  MC_UNROLL
  for (uint32_t r = 0; r < kTileRows; ++r) sums[r] = tile[r];
  for (uint32_t part = begin; part < end && part < begin + kTurns - 1; ++part) products.start(part);
  for (uint32_t part = begin; part < end; ++part) {
    if (part + kTurns - 1 < end) products.start(part + kTurns - 1);
    const size_t group = part / kParts, half = part % kParts;
    const float* const scales = panel.scales + (group * panel.numbers + half) * kLanes;
    const float* const row_scales = x.scales + group * kTileRows;
    const V scale = V::load(scales);
    MC_UNROLL
    for (uint32_t r = 0; r < kTileRows; ++r)
      sums[r] = V::fma(products.sum(part, r), V::mul(scale, V::all(row_scales[r])), sums[r]);
    if constexpr (kMinimum) {
      const float* const shares = x.shares + (group * 3 + (kHalves ? half : 2)) * kTileRows;
      const V minimum = V::load(scales + kParts * kLanes);
      MC_UNROLL
      for (uint32_t r = 0; r < kTileRows; ++r)
        sums[r] = V::fma(minimum, V::all(shares[r]), sums[r]);
    }
  }
  MC_UNROLL
  for (uint32_t r = 0; r < kTileRows; ++r) tile[r] = sums[r];
}

constexpr uint32_t kTileDepth = 32;  // groups at a time: their weights stay in the first cache

struct TileSpan {  // groups [begin, end) of a part of the sum
  uint32_t segment, begin, end;
  bool continued;  // on from y, in the first part only: others are added to y as a whole
};

// 16 rows by a panel's columns, `n` that exist.
template <class T, bool kHalves, bool kMinimum>
void tile_of_rows(const BlockJob& job, const TilePanel& panel, const TileSpan& span, size_t row,
                  uint32_t first, uint32_t n) {
  constexpr uint32_t kParts = kHalves ? 2 : 1;
  float* const y = job.y + row * job.y_stride + first;
  V tile[kTileRows];
  for (uint32_t r = 0; r < kTileRows; ++r)
    tile[r] = span.continued ? load_some(y + r * job.y_stride, n) : V::zero();
  add_tile_parts<T, kHalves, kMinimum>(panel, job.x.from(row, job.groups), span.begin * kParts,
                                       span.end * kParts, tile);
  for (uint32_t r = 0; r < kTileRows; ++r) {
    float* const to = y + r * job.y_stride;
    store_some(span.segment == 0 ? tile[r] : V::add(load_some(to, n), tile[r]), to, n);
  }
}

// All rows by a panel.
template <class T, bool kHalves, bool kMinimum>
void tile_panel(const BlockJob& job, const TilePanel& panel, size_t rows, uint32_t first) {
  const uint32_t left = job.columns - first, n = left < kLanes ? left : kLanes;
  const uint32_t part = job.groups / job.segments;
  for (uint32_t s = 0; s < job.segments; ++s) {
    const uint32_t depth = s == 0 ? kTileDepth : part;
    for (uint32_t begin = 0; begin < part; begin += depth) {
      const uint32_t end = begin + depth < part ? begin + depth : part;
      const TileSpan span{s, s * part + begin, s * part + end, begin > 0};
      for (size_t row = 0; row < rows; row += kTileRows)
        tile_of_rows<T, kHalves, kMinimum>(job, panel, span, row, first, n);
    }
  }
}

template <class T, uint32_t kBits, bool kHalves, bool kMinimum>
void tile_panels(const BlockJob& job, size_t rows) {
  const TilePanel ready(job, thread_scratch(TilePanel::bytes(job)));
  T::configure(tiles_of(kHalves ? 4 : 8));
  for (uint32_t first = 0; first < job.columns; first += kLanes) {
    unpack_panel<kBits>(job, job.panels + first / kLanes * job.panel_bytes, ready);
    tile_panel<T, kHalves, kMinimum>(job, ready, rows, first);
  }
  T::release();
}

template <class T>
void tile_rows(const BlockJob& job, size_t rows) {
  const BlockFormat& f = *job.layout.format;
  switch (f.bits) {
    case 4:
      if (f.halves)
        return f.minimum ? tile_panels<T, 4, true, true>(job, rows)
                         : tile_panels<T, 4, true, false>(job, rows);
      return f.minimum ? tile_panels<T, 4, false, true>(job, rows)
                       : tile_panels<T, 4, false, false>(job, rows);
    case 5:
      return f.minimum ? tile_panels<T, 5, false, true>(job, rows)
                       : tile_panels<T, 5, false, false>(job, rows);
    case 6: return tile_panels<T, 6, true, false>(job, rows);
    default: return tile_panels<T, 8, false, false>(job, rows);
  }
}

template <class T>
void multiply_on_tiles(const BlockJob& job) {
  const size_t rows = job.rows / kTileRows * kTileRows;
  if (rows > 0) tile_rows<T>(job, rows);
  if (rows == job.rows) return;
  BlockJob rest = job;
  rest.x = job.x.from(rows, job.groups);
  rest.rows = job.rows - rows;
  rest.y += rows * job.y_stride;
  if (rows > 0) rest.ahead = 0;
  avx512vnni::kBlockKernels.multiply(rest);
}

void round_for_tiles(const float* x, size_t stride, uint32_t rows, uint32_t groups,
                     const RoundedRows& out) {
  if (rows != kTileRows) return avx512vnni::kBlockKernels.round(x, stride, rows, groups, out);
  for (uint32_t g = 0; g < groups; ++g)
    for (uint32_t first = 0; first < kTileRows; first += 8)
      EightRows{x + first * stride + size_t{g} * kGroup, stride}.round<true>(
          {out, g, kTileRows, first});
}
