#include "model/kernels/matrix.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/result.h"

namespace mc::model {
namespace {
constexpr uint64_t kWorkAlone =
    100'000;  // multiply-adds below which threads cost more than they do
constexpr size_t kHugePage = 2u << 20;

// Large matrices in huge pages, where the system gives them: they are read from end to end.
void* allocate(size_t bytes) {
  const size_t align = bytes >= kHugePage ? kHugePage : 64;
  const size_t whole = (bytes + align - 1) / align * align;
  void* memory = std::aligned_alloc(align, whole);
  if (memory != nullptr && align == kHugePage) ::madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}

// A group of rows of x, as a job of bf16 wants it.
void round_group(const Kernels& kernels, const PanelJob& job, size_t group, uint16_t* out) {
  const size_t first = group * kGroupRows, rows = std::min(kGroupRows, job.rows - first);
  const size_t part = job.part(), steps = job.steps();
  out += first * job.segments * steps * 2;
  std::vector<uint16_t> row(steps * 2);  // of one segment; a zero after an odd part
  for (size_t r = 0; r < rows; ++r)
    for (uint32_t s = 0; s < job.segments; ++s) {
      kernels.round(job.x + (first + r) * job.x_stride + s * part, part, row.data());
      uint16_t* to = out + (s * steps * rows + r) * 2;
      for (size_t i = 0; i < steps; ++i) std::memcpy(to + i * rows * 2, row.data() + i * 2, 4);
    }
}

}  // namespace

void Matrix::Free::operator()(std::byte* p) const { std::free(p); }

Matrix Matrix::pack(uint32_t rows, uint32_t columns, DType type, uint32_t segments,
                    const RowReader& read, ThreadPool& threads) {
  MC_CHECK(rows > 0 && columns > 0 && segments > 0 && columns % segments == 0);
  Matrix m;
  m.rows_ = rows;
  m.columns_ = columns;
  m.segments_ = segments;
  m.type_ = type == DType::kBf16 ? DType::kBf16 : DType::kF32;
  const PanelJob shape = m.job();
  m.panel_bytes_ = size_t{segments} * shape.steps() * kStepBytes;
  m.data_.reset(static_cast<std::byte*>(allocate(m.bytes())));
  MC_CHECK(m.data_ != nullptr);
  // Where k lies in a panel, in elements of 16 lanes each (bf16: of both of a pair).
  const bool pairs = m.type_ == DType::kBf16;
  threads.run((rows + kLanes - 1) / kLanes, [&](size_t panel) {
    const size_t elements = m.panel_bytes_ / size_of(m.type_);
    std::vector<float> row(columns), panel_rows(elements);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const auto n = static_cast<uint32_t>(panel * kLanes + lane);
      if (n >= rows) continue;
      read(n, row.data());
      for (uint32_t k = 0; k < columns; ++k) {
        const size_t step = size_t{k / shape.part()} * shape.steps();
        const uint32_t in = k % shape.part();
        panel_rows[pairs ? ((step + in / 2) * kLanes + lane) * 2 + in % 2
                         : (step + in) * kLanes + lane] = row[k];
      }
    }
    from_floats(m.type_, panel_rows.data(), m.data_.get() + panel * m.panel_bytes_, elements);
  });
  return m;
}

PanelJob Matrix::job() const {
  PanelJob job;
  job.type = type_;
  job.k = columns_;
  job.segments = segments_;
  job.panel_bytes = panel_bytes_;
  return job;
}

void Matrix::row(uint32_t n, float* out) const {
  const PanelJob shape = job();
  const std::byte* panel = data_.get() + n / kLanes * panel_bytes_;
  const uint32_t lane = n % kLanes;
  for (uint32_t k = 0; k < columns_; ++k) {
    const size_t step = size_t{k / shape.part()} * shape.steps();
    const uint32_t in = k % shape.part();
    const size_t at = type_ == DType::kBf16 ? ((step + in / 2) * kLanes + lane) * 2 + in % 2
                                            : (step + in) * kLanes + lane;
    to_floats(type_, panel + at * size_of(type_), out + k, 1);
  }
}

void Matrix::multiply(const Kernels& kernels, ThreadPool& threads, const float* x, size_t count,
                      float* y, DType factors) const {
  constexpr uint32_t kWide = kPanels * kLanes;
  PanelJob whole = job();
  whole.rows = count;
  whole.x = x;
  whole.x_stride = columns_;
  whole.y_stride = rows_;
  const bool alone = uint64_t{rows_} * columns_ * count < kWorkAlone;
  const auto share = [&](size_t parts, const std::function<void(size_t)>& part) {
    if (!alone) return threads.run(parts, part);
    for (size_t i = 0; i < parts; ++i) part(i);
  };
  std::unique_ptr<uint16_t[]> rounded;
  if (type_ == DType::kBf16 && factors == DType::kBf16) {
    rounded = std::make_unique_for_overwrite<uint16_t[]>(count * segments_ * whole.steps() * 2);
    whole.x_bf16 = rounded.get();
    share((count + kGroupRows - 1) / kGroupRows,
          [&](size_t group) { round_group(kernels, whole, group, rounded.get()); });
  }
  share((rows_ + kWide - 1) / kWide, [&](size_t g) {
    PanelJob group = whole;
    group.panels = data_.get() + g * kPanels * panel_bytes_;
    group.columns = std::min(kWide, rows_ - static_cast<uint32_t>(g) * kWide);
    group.y = y + g * kWide;
    kernels.multiply(group);
  });
}

}  // namespace mc::model
