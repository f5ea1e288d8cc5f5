// What the attention kernels of the tensor cores share: the order in which a query's sums are made.
// Positions are taken in splits of MC_SPLIT, a split in tiles of kKeys. A tile's keys are in
// kSoftmaxColumns columns, key i in column i % kSoftmaxColumns. A column's shares are added one
// after the other, then columns as neighbours, pairs of them, and halves. Splits are merged in
// order. Each kernel keeps to it, so that a query gets the same bits from each. Scores count as
// powers of two: a key's share is 2^(product x scale - most), where the scale includes log2(e).
//
// Source: FlashAttention (Dao et al. 2022); the split over keys, Flash-Decoding (Dao et al. 2023).
#pragma once
#include "device/kernels/pages.h"

namespace {

constexpr uint32_t kKeys = 64, kSoftmaxColumns = 8;
constexpr uint32_t kHeadPitch = MC_TENSOR_DIM_MAX + 8;  // of a row in shared memory

// A softmax so far: the greatest score, the sum, and what numbers from before count for.
struct Softmax {
  float most, total, keep;
};

// Of a product of query and key, to the score.
MC_DEVICE float scale_of_two(float scale) { return scale * 1.44269504088896341f; }
// What shares are taken from: `most`, or anything finite while no key was seen.
MC_DEVICE float base_of(float most) { return most == -INFINITY ? 0.0f : most; }

// What two parts of a sum count for together: those before, and those of the next split.
struct Merge {
  float most, before, next;
};
MC_DEVICE Merge merged(float most, float next) {
  const float both = greater(most, next), base = base_of(both);
  return {both, power_of_two(most - base), power_of_two(next - base)};
}

MC_DEVICE uint32_t joined(uint16_t low, uint16_t high) {
  return low | static_cast<uint32_t>(high) << 16;
}

// The rows of a group and where its results go.
struct FlashRows {
  const float* qkv;
  float *out, *parts;
  const mc_row* rows;
  uint32_t first, count, heads, per_kv;  // rows, query heads, those of a KV head
};

}  // namespace
