// Products with weights that stay in their small integers. What they are multiplied by is rounded
// to integers of 8 bits too, in groups of 32 with a scale each.
//
// y[row][column] = sum over groups of fma(sum of integer products, weight scale x row scale, ..),
// then, where the format has minimums, of fma(minimum, row scale x sum of the row's integers, ..).
// Integers are added exactly, so every instruction set computes the same bits; the order of groups
// depends on the length of the sum alone.
//
// Thread: any. Source: the method is llama.cpp's (ggml), the order of sums is not.
#pragma once
#include <cstddef>
#include <cstdint>

#include "model/files/block_format.h"

namespace mc::model {

// Where a group of 32 elements of 16 columns (a panel's) lies, and its scales. A panel is all of
// its groups' integers, then all of its groups' scales.
//
// Step i of a group is its elements 4i to 4i+3 of 16 columns, [column][4]. Integers of 8 bits are
// eight steps of 64 bytes. Others are four times 64 bytes, step i in the low nibbles and step i + 4
// in the high ones; then for each bit above the fourth 64 bytes, one bit for each element of each
// step. Scales are [half, where the format has halves][16], then minimums alike; f16 or f32.
struct BlockLayout {
  const BlockFormat* format = nullptr;

  size_t integer_bytes() const { return size_t{64} * format->bits; }
  size_t numbers() const { return (format->halves ? 2u : 1u) * (format->minimum ? 2u : 1u); }
  size_t scale_bytes() const { return numbers() * 16 * (format->f16 ? 2 : 4); }
  size_t panel_bytes(uint32_t groups) const {
    return (groups * (integer_bytes() + scale_bytes()) + 63) / 64 * 64;
  }
};

// Rows rounded to integers: x is about integer x scale. NaN becomes -127, and does not count for
// the scale. Of a chunk of 8, 4, 2 or 1 rows that are computed together, [group][step][row][4]
// integers, [group][row] scales, and of each half of a group and of the whole one (part 2),
// [group][part][row] sums times -1, and sums times the scale. A chunk of 16 rows has
// [group][row][32] integers.
struct RoundedRows {
  int8_t* integers;
  float* scales;
  int32_t* minus_sums;
  float* shares;

  RoundedRows from(size_t row, uint32_t groups) const {  // the chunk that begins at this row
    const size_t at = row * groups;
    return {integers + at * kGroup, scales + at, minus_sums + 3 * at, shares + 3 * at};
  }
};

struct BlockJob {
  const std::byte* panels = nullptr;
  size_t panel_bytes = 0;  // from one panel to the next
  BlockLayout layout;
  uint32_t groups = 0;    // of a sum
  uint32_t segments = 1;  // equal parts of the sum, each summed from zero, added in order
  uint32_t columns = 0;   // of y that exist
  RoundedRows x{};
  size_t rows = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  // Bytes from a panel to one that will be read soon: that is fetched on the way. 0: none.
  size_t ahead = 0;
};

struct BlockKernels {
  // Rounds a chunk of `rows` rows of floats, `stride` apart.
  void (*round)(const float* x, size_t stride, uint32_t rows, uint32_t groups,
                const RoundedRows& out);
  void (*multiply)(const BlockJob& job);
  uint32_t most_rows;  // computed together: 8 or 16

  // How many of `left` rows are a chunk.
  uint32_t rows_together(size_t left) const {
    uint32_t rows = most_rows;
    while (rows > left) rows /= 2;
    return rows;
  }
};

}  // namespace mc::model
