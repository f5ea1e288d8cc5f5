// The inner loops of the forward pass, one table per instruction set. The table is chosen at run
// time.
//
// Every set computes the same bits: sums are chains of fused multiply-adds in one fixed order, in
// 16 lanes that are then added in one fixed tree. An element's order depends on the length of its
// sum and on nothing else: not on the number of rows computed together, the ends of chunks, or the
// number of threads. So tokens are equal however a prompt was cut, batched or reused.
//
// Units: floats; strides in elements unless they say bytes. Thread: any. Source: Cephes for the
// polynomial of exp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/files/dtype.h"
#include "model/files/families.h"
#include "model/kernels/attention.h"
#include "model/kernels/block_kernels.h"

namespace mc::model {

inline constexpr uint32_t kLanes = 16;  // columns of a panel of weights
inline constexpr uint32_t kPanels = 3;  // panels computed together

// y[row][column] = sum over k of x[row][k] w[k][column], for up to kPanels panels of weights. The k
// are cut into `segments` equal parts, each summed from zero, the parts added in order. A panel of
// f32 or f16 is [segment][k][kLanes]; one of bf16 [segment][pair of k][kLanes][2], a zero after an
// odd part, and of each pair the second is added first.
struct PanelJob {
  const std::byte* panels = nullptr;
  size_t panel_bytes = 0;  // from one panel to the next
  DType type = DType::kF32;
  uint32_t k = 0, segments = 1;
  uint32_t columns = 0;  // of y that exist: 1 to kPanels x kLanes
  const float* x = nullptr;
  // Or x as bf16, with weights of bf16: its rows in groups of kGroupRows, the last of what is left,
  // each [segment][pair of k][row][2], with the zeros.
  const uint16_t* x_bf16 = nullptr;
  size_t x_stride = 0, rows = 0;
  float* y = nullptr;
  size_t y_stride = 0;
  size_t ahead = 0;  // bytes from a panel to one that will be read soon, or 0 (BlockJob)

  uint32_t part() const { return k / segments; }
  uint32_t steps() const { return type == DType::kBf16 ? (part() + 1) / 2 : part(); }  // of a part
  size_t step_bytes() const { return type == DType::kF16 ? 32 : 64; }  // 16 numbers, or 16 pairs
};
inline constexpr size_t kGroupRows = 8;  // rows computed together

struct Kernels {
  const char* name;
  void (*multiply)(const PanelJob& job);
  // What to_floats() gives, of any type.
  void (*widen)(DType type, const std::byte* from, size_t n, float* out);
  // x to the nearest bf16.
  void (*round)(const float* x, size_t n, uint16_t* out);
  // out = x / rms(x) * weight. out may be x.
  void (*normalize)(const float* x, const float* weight, size_t n, double eps, float* out);
  // out[i] = activation(gate[i]) * up[i]
  void (*gate)(const float* gate, const float* up, size_t n, Activation activation, float* out);
  // Attention to a tile (attention.h).
  void (*attend)(const FloatAttention& job);
  void (*score_pairs)(const PairScores& job);
  void (*add_pair_values)(const PairValues& job);
  // `words` words of 32 bits of each row, a multiple of 8, all exclusive-ored with `flip`: of each
  // 16 rows as [word][row], `panel_bytes` from one to the next. `rows`: `count` pointers rounded up
  // to 16. As many rows of `ahead` are fetched on the way.
  void (*turn_words)(const std::byte* const* rows, uint32_t count, uint32_t words, uint32_t flip,
                     std::byte* out, size_t panel_bytes, const std::byte* const* ahead);
  // out[pair of rows][i] = number i of both as bf16, of n bf16 or integers of 8 bits, n a multiple
  // of 32. `rows`: `count` pointers rounded up to 2; `ahead`: as there.
  void (*pair_rows)(bool integers, const std::byte* const* rows, uint32_t count, uint32_t n,
                    std::byte* out, const std::byte* const* ahead);
  // x[i] = cap x tanh(x[i] / cap)
  void (*soft_cap)(float* x, size_t n, float cap);
  // x[i] = e^x[i], for x up to 88; below -87 it is as for -87.
  void (*exponential)(float* x, size_t n);
  const BlockKernels* blocks;  // products with blocks of integers
  uint32_t few;                // queries that are best given rows as they lie (PairRows), at most
};

// Best first; the last needs nothing special.
std::vector<const Kernels*> kernels_here();
// "auto": the best one. nullptr: no such set, or this CPU cannot.
const Kernels* kernels_named(std::string_view name);

inline uint32_t padded(uint32_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

}  // namespace mc::model
