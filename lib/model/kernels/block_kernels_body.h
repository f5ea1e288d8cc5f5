// Implements the products of block_kernels.h once, over V (kernels_body.h) and two types that a
// file per instruction set defines before it includes this:
//
//   Words       as block_words_body.h has it
//   Dots<bits>  16 sums of products of integers; kRows: of how many rows together
//
// Nothing of the standard library may be instantiated here (kernels_body.h says why).
#pragma once

#include "model/kernels/block_words_body.h"
#include "model/kernels/kernels_tails.h"

// A group of a chunk of rows.
void round_group_rows(const float* x, size_t stride, uint32_t rows, uint32_t group,
                      const RoundedRows& out) {
  int8_t integers[kGroup];
  for (uint32_t r = 0; r < rows; ++r) {
    float& scale = out.scales[group * rows + r];
    int32_t sums[2];
    round_group_of(x + r * stride + size_t{group} * kGroup, integers, scale, sums);
    for (uint32_t step = 0; step < 8; ++step)
      __builtin_memcpy(out.integers + ((size_t{group} * 8 + step) * rows + r) * 4,
                       integers + step * 4, 4);
    const int32_t parts[3] = {sums[0], sums[1], sums[0] + sums[1]};
    for (uint32_t p = 0; p < 3; ++p) {
      const size_t at = (size_t{group} * 3 + p) * rows + r;
      out.minus_sums[at] = -parts[p];
      out.shares[at] = scale * static_cast<float>(parts[p]);
    }
  }
}

// A chunk of rows.
void round_rows(const float* x, size_t stride, uint32_t rows, uint32_t groups,
                const RoundedRows& out) {
  for (uint32_t g = 0; g < groups; ++g) round_group_rows(x, stride, rows, g, out);
}

// `x`: the first row's integers, of each step those of kRows rows.
template <uint32_t kBits, uint32_t kStep, uint32_t kEnd, uint32_t kRows, uint32_t kSome,
          uint32_t kWide>
[[gnu::always_inline]] inline void add_words(const std::byte* group, size_t panel_bytes,
                                             const int8_t* x, Dots<kBits> (&dots)[kSome][kWide]) {
  if constexpr (kStep < kEnd) {
    Words w[kWide];
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p) w[p] = words_of<kBits, kStep>(group + p * panel_bytes);
    MC_UNROLL
    for (uint32_t r = 0; r < kSome; ++r) {
      int32_t four;
      __builtin_memcpy(&four, x + (kStep * kRows + r) * 4, 4);
      MC_UNROLL
      for (uint32_t p = 0; p < kWide; ++p) dots[r][p].template add<kStep>(w[p], four);
    }
    add_words<kBits, kStep + 1, kEnd, kRows>(group, panel_bytes, x, dots);
  }
}

struct GroupPlace {  // of the first panel
  const std::byte *integers, *scales;
  size_t panel_bytes;
  uint32_t group;
  bool f16;
};

// One half of a group, or (kPart 2) the whole, of kSome rows from `first` on.
template <uint32_t kBits, bool kMinimum, uint32_t kPart, uint32_t kSome, uint32_t kRows,
          uint32_t kWide>
[[gnu::always_inline]] inline void add_some(const GroupPlace& at, const RoundedRows& x,
                                            uint32_t first, V (&sums)[kRows][kWide]) {
  constexpr uint32_t kFirst = kPart == 1 ? 4 : 0, kLast = kPart == 0 ? 4 : 8;
  constexpr uint32_t kHalves = kPart == 2 ? 1 : 2, kSecond = kPart == 1 ? 1 : 0;
  const size_t part = (size_t{at.group} * 3 + kPart) * kRows + first;
  const size_t row = size_t{at.group} * kRows + first;
  const uint32_t number = (at.f16 ? 2 : 4) * kLanes;
  Dots<kBits> dots[kSome][kWide];
  MC_UNROLL
  for (uint32_t r = 0; r < kSome; ++r) {
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p)
      dots[r][p].template start<offset_of(kBits, kHalves == 2, kMinimum)>(x.minus_sums[part + r]);
  }
  add_words<kBits, kFirst, kLast, kRows>(at.integers, at.panel_bytes,
                                         x.integers + size_t{at.group} * kRows * kGroup + first * 4,
                                         dots);
  MC_UNROLL
  for (uint32_t p = 0; p < kWide; ++p) {
    const std::byte* const scales = at.scales + p * at.panel_bytes;
    const V scale = scales_at(scales + kSecond * number, at.f16);
    MC_UNROLL
    for (uint32_t r = 0; r < kSome; ++r) {
      V& sum = sums[first + r][p];
      sum = V::fma(dots[r][p].floats(), V::mul(scale, V::all(x.scales[row + r])), sum);
    }
    if constexpr (kMinimum) {
      const V minimum = scales_at(scales + (kHalves + kSecond) * number, at.f16);
      MC_UNROLL
      for (uint32_t r = 0; r < kSome; ++r) {
        V& sum = sums[first + r][p];
        sum = V::fma(minimum, V::all(x.shares[part + r]), sum);
      }
    }
  }
}

template <uint32_t kBits, bool kMinimum, uint32_t kPart, uint32_t kRows, uint32_t kWide>
[[gnu::always_inline]] inline void add_part(const GroupPlace& at, const RoundedRows& x,
                                            V (&sums)[kRows][kWide]) {
  constexpr uint32_t kSome = kRows < Dots<kBits>::kRows ? kRows : Dots<kBits>::kRows;
  MC_UNROLL
  for (uint32_t first = 0; first < kRows; first += kSome)
    add_some<kBits, kMinimum, kPart, kSome>(at, x, first, sums);
}

// kRows rows by the kWide panels from the column `first` on.
template <uint32_t kBits, bool kHalves, bool kMinimum, uint32_t kRows, uint32_t kWide>
void block_tile(const BlockJob& job, uint32_t first, size_t row) {
  const size_t group_bytes = job.layout.integer_bytes(), scale_bytes = job.layout.scale_bytes();
  const std::byte* const panel = job.panels + first / kLanes * job.panel_bytes;
  const std::byte* const scales = panel + job.groups * group_bytes;
  const RoundedRows x = job.x.from(row, job.groups);
  const uint32_t part = job.groups / job.segments;
  const bool f16 = job.layout.format->f16;
  V total[kRows][kWide];
  for (uint32_t s = 0; s < job.segments; ++s) {
    V sums[kRows][kWide];
    MC_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      MC_UNROLL
      for (uint32_t p = 0; p < kWide; ++p) sums[r][p] = V::zero();
    }
    for (uint32_t g = s * part; g < (s + 1) * part; ++g) {
      const GroupPlace at{panel + g * group_bytes, scales + g * scale_bytes, job.panel_bytes, g,
                          f16};
      if (row == 0 && job.ahead != 0)
        fetch_ahead<kWide>(panel + job.ahead + g * (group_bytes + scale_bytes),
                           group_bytes + scale_bytes, job.panel_bytes);
      if constexpr (kHalves) {
        add_part<kBits, kMinimum, 0>(at, x, sums);
        add_part<kBits, kMinimum, 1>(at, x, sums);
      } else {
        add_part<kBits, kMinimum, 2>(at, x, sums);
      }
    }
    MC_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      MC_UNROLL
      for (uint32_t p = 0; p < kWide; ++p)
        total[r][p] = s == 0 ? sums[r][p] : V::add(total[r][p], sums[r][p]);
    }
  }
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p) {
      const uint32_t left = job.columns - first - p * kLanes;
      store_some(total[r][p], job.y + (row + r) * job.y_stride + first + p * kLanes,
                 left < kLanes ? left : kLanes);
    }
  }
}

// Few rows wait for memory: it is faster to read three panels at once.
template <uint32_t kBits, bool kHalves, bool kMinimum, uint32_t kRows>
void block_rows(const BlockJob& job, size_t row) {
  uint32_t first = 0;
  if constexpr (kRows <= 2)
    for (; first + (kPanels - 1) * kLanes < job.columns; first += kPanels * kLanes)
      block_tile<kBits, kHalves, kMinimum, kRows, kPanels>(job, first, row);
  for (; first < job.columns; first += kLanes)
    block_tile<kBits, kHalves, kMinimum, kRows, 1>(job, first, row);
}

template <uint32_t kBits, bool kHalves, bool kMinimum>
void block_panels(const BlockJob& job) {
  for (size_t row = 0; row < job.rows;) {
    const size_t left = job.rows - row;
    if (left >= 8)
      block_rows<kBits, kHalves, kMinimum, 8>(job, row), row += 8;
    else if (left >= 4)
      block_rows<kBits, kHalves, kMinimum, 4>(job, row), row += 4;
    else if (left >= 2)
      block_rows<kBits, kHalves, kMinimum, 2>(job, row), row += 2;
    else
      block_rows<kBits, kHalves, kMinimum, 1>(job, row), row += 1;
  }
}

void multiply_blocks(const BlockJob& job) {
  const BlockFormat& f = *job.layout.format;
  switch (f.bits) {
    case 4:
      if (f.halves)
        return f.minimum ? block_panels<4, true, true>(job) : block_panels<4, true, false>(job);
      return f.minimum ? block_panels<4, false, true>(job) : block_panels<4, false, false>(job);
    case 5:
      return f.minimum ? block_panels<5, false, true>(job) : block_panels<5, false, false>(job);
    case 6: return block_panels<6, true, false>(job);
    default: return block_panels<8, false, false>(job);
  }
}
