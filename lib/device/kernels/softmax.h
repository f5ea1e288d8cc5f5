// What the attention kernels of the tensor cores share: the order in which a query's sums are made.
// Positions are taken in splits of MC_SPLIT, a split in tiles of kKeys. A tile's keys are in
// kSoftmaxColumns columns, key i in column i % kSoftmaxColumns. A column's shares are added one
// after the other, then columns as neighbours, pairs of them, and halves. Splits are merged in
// order. Each kernel keeps to it, so that a query gets the same bits from each.
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

// What two parts of a sum count for together: those before, and those of the next split.
struct Merge {
  float most, before, next;
};
MC_DEVICE Merge merged(float most, float next) {
  const float both = most > next ? most : next;
  return {both, most == -INFINITY ? 0.0f : exponential(most - both),
          next == -INFINITY ? 0.0f : exponential(next - both)};
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
