// Packs a matrix of weights for the kernels: panels of 16 rows, side by side. Quantized blocks stay
// as they are.
//
// Thread: values; const calls, any.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/kernels/block_panels.h"
#include "model/kernels/kernels.h"
#include "model/kernels/thread_pool.h"

namespace mc::model {

class Matrix {
 public:
  // Writes row n of the file's matrix ([rows][columns], a row makes one output).
  using RowReader = std::function<void(uint32_t n, float* out)>;

  Matrix() = default;
  // `segments`: into how many parts a sum is cut (PanelJob); divides `columns`. Rows are read by
  // several threads at once.
  static Matrix pack(uint32_t rows, uint32_t columns, DType type, uint32_t segments,
                     const RowReader& read, ThreadPool& threads);
  // Of quantized rows, one part below the other, each in a format of its own. Every multiplication
  // rounds x to integers of 8 bits (block_kernels.h), whatever its `factors`. A sum is cut into as
  // many parts of whole groups as divide `segments`.
  static Matrix pack_blocks(uint32_t columns, uint32_t segments, std::span<const BlockRows> parts,
                            ThreadPool& threads);

  uint32_t rows() const { return rows_; }
  uint32_t columns() const { return columns_; }
  bool quantized() const { return !blocks_.empty(); }
  size_t bytes() const;
  void row(uint32_t n, float* out) const;

  // y[r][0 to rows) = this x[r], for r below `count`. x and y are dense. `factors` kBf16: x is
  // rounded to bf16 first, where the matrix is of bf16.
  void multiply(const Kernels& kernels, ThreadPool& threads, const float* x, size_t count, float* y,
                DType factors = DType::kF32) const;

 private:
  uint32_t rows_ = 0, columns_ = 0, segments_ = 1;
  DType type_ = DType::kF32;
  PanelJob job() const;  // without its rows
  void multiply_blocks(const Kernels& kernels, ThreadPool& threads, const float* x, size_t count,
                       float* y) const;
  size_t panel_bytes_ = 0;
  PanelMemory data_;
  std::vector<BlockPanels> blocks_;  // of quantized rows: instead of data
};

}  // namespace mc::model
