#include "model/matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/result.h"

namespace mc::model {
namespace {
constexpr uint64_t kWorkAlone =
    100'000;  // multiply-adds below which threads cost more than they do
}

void Matrix::Free::operator()(std::byte* p) const { std::free(p); }

Matrix Matrix::pack(uint32_t rows, uint32_t columns, DType type, uint32_t segments,
                    const RowReader& read, Threads& threads) {
  MC_CHECK(rows > 0 && columns > 0 && segments > 0 && columns % segments == 0);
  Matrix m;
  m.rows_ = rows;
  m.columns_ = columns;
  m.segments_ = segments;
  m.type_ = type == DType::kBf16 ? DType::kBf16 : DType::kF32;
  const size_t size = size_of(m.type_);
  m.panel_bytes_ = size_t{columns} * kLanes * size;
  m.data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, (m.bytes() + 63) / 64 * 64)));
  MC_CHECK(m.data_ != nullptr);
  threads.run((rows + kLanes - 1) / kLanes, [&](size_t panel) {
    std::vector<float> row(columns), panel_rows(size_t{columns} * kLanes);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const auto n = static_cast<uint32_t>(panel * kLanes + lane);
      if (n >= rows) continue;
      read(n, row.data());
      for (uint32_t k = 0; k < columns; ++k) panel_rows[k * kLanes + lane] = row[k];
    }
    from_floats(m.type_, panel_rows.data(), m.data_.get() + panel * m.panel_bytes_,
                panel_rows.size());
  });
  return m;
}

void Matrix::row(uint32_t n, float* out) const {
  const size_t size = size_of(type_);
  const std::byte* at = data_.get() + n / kLanes * panel_bytes_ + n % kLanes * size;
  for (uint32_t k = 0; k < columns_; ++k) to_floats(type_, at + k * kLanes * size, out + k, 1);
}

void Matrix::multiply(const Kernels& kernels, Threads& threads, const float* x, size_t count,
                      float* y) const {
  constexpr uint32_t kWide = kPanels * kLanes;
  const auto group = [&](size_t g) {
    PanelJob job;
    job.panels = data_.get() + g * kPanels * panel_bytes_;
    job.panel_bytes = panel_bytes_;
    job.type = type_;
    job.k = columns_;
    job.segments = segments_;
    job.columns = std::min(kWide, rows_ - static_cast<uint32_t>(g) * kWide);
    job.x = x;
    job.x_stride = columns_;
    job.rows = count;
    job.y = y + g * kWide;
    job.y_stride = rows_;
    kernels.multiply(job);
  };
  const size_t groups = (rows_ + kWide - 1) / kWide;
  if (uint64_t{rows_} * columns_ * count >= kWorkAlone) return threads.run(groups, group);
  for (size_t g = 0; g < groups; ++g) group(g);
}

}  // namespace mc::model
