// Rows of one block format, packed in panels for the kernels of block_kernels.h.
//
// Thread: values; const calls, any.
#pragma once
#include <functional>
#include <vector>

#include "model/kernels/block_kernels.h"
#include "model/kernels/scratch.h"
#include "model/kernels/thread_pool.h"

namespace mc::model {

// Rows of a matrix as blocks of a file.
struct BlockRows {
  const BlockFormat* format = nullptr;
  uint32_t rows = 0;
  // The blocks of row n, where the file has them, or made in `scratch`. Any thread.
  std::function<const std::byte*(uint32_t n, std::vector<std::byte>& scratch)> row;
};

class BlockPanels {
 public:
  // Requires: `columns` are whole blocks.
  static BlockPanels pack(const BlockRows& source, uint32_t columns, ThreadPool& threads);

  uint32_t rows() const { return rows_; }
  size_t bytes() const;
  // Row n as floats, bit for bit as dequantize() gives it.
  void row(uint32_t n, float* out) const;
  // The product with panels from `first` on, of the rows that are left; without x, rows and y.
  BlockJob job(uint32_t first_panel) const;

 private:
  void pack_panel(const BlockRows& source, uint32_t panel) const;
  BlockLayout layout_;
  uint32_t rows_ = 0, groups_ = 0;
  PanelMemory data_;
};

// Memory for rows that are rounded for a product.
class RoundedMemory {
 public:
  RoundedMemory(size_t rows, uint32_t groups);
  RoundedRows rows() const { return rows_; }

 private:
  ScratchMemory memory_;
  RoundedRows rows_;
};

}  // namespace mc::model
