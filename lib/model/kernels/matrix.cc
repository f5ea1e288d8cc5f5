#include "model/kernels/matrix.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/result.h"

namespace mc::model {
namespace {
constexpr uint64_t kWorkAlone =
    100'000;  // multiply-adds below which threads cost more than they do
// Of longer panels the processor itself reads ahead of few rows, and better.
constexpr size_t kShortPanel = 32 << 10;
constexpr uint32_t kWide = kPanels * kLanes;  // columns computed together

// Parts of a product on the threads, or on this one alone where they cost more.
template <class Part>
void share(ThreadPool& threads, uint64_t work, size_t parts, const Part& part) {
  if (work >= kWorkAlone) return threads.run(parts, part);
  for (size_t i = 0; i < parts; ++i) part(i);
}

// From panels of group `g` to those that a thread takes next (BlockJob), where there are some.
size_t ahead_of(const ThreadPool& threads, size_t g, size_t groups, size_t panel_bytes) {
  return g + threads.count() < groups ? threads.count() * kPanels * panel_bytes : 0;
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

Matrix Matrix::pack(uint32_t rows, uint32_t columns, DType type, uint32_t segments,
                    const RowReader& read, ThreadPool& threads) {
  MC_CHECK(rows > 0 && columns > 0 && segments > 0 && columns % segments == 0);
  Matrix m;
  m.rows_ = rows;
  m.columns_ = columns;
  m.segments_ = segments;
  m.type_ = type;
  const PanelJob shape = m.job();
  m.panel_bytes_ = size_t{segments} * shape.steps() * shape.step_bytes();
  m.data_ = allocate_panels(m.bytes());
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

Matrix Matrix::pack_blocks(uint32_t columns, uint32_t segments, std::span<const BlockRows> parts,
                           ThreadPool& threads) {
  MC_CHECK(columns > 0 && segments > 0 && columns % kGroup == 0);
  Matrix m;
  m.columns_ = columns;
  m.segments_ = std::gcd(columns / kGroup, segments);
  for (const BlockRows& part : parts) {
    m.blocks_.push_back(BlockPanels::pack(part, columns, threads));
    m.rows_ += part.rows;
  }
  return m;
}

size_t Matrix::bytes() const {
  size_t bytes = panel_bytes_ * ((rows_ + kLanes - 1) / kLanes);
  for (const BlockPanels& part : blocks_) bytes += part.bytes();
  return bytes;
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
  if (!blocks_.empty()) {
    auto part = blocks_.begin();
    for (; n >= part->rows(); ++part) n -= part->rows();
    return part->row(n, out);
  }
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

void Matrix::multiply_blocks(const Kernels& kernels, ThreadPool& threads, const float* x,
                             size_t count, float* y) const {
  const uint32_t groups = columns_ / kGroup;
  const uint64_t work = uint64_t{rows_} * columns_ * count;
  const RoundedMemory rounded(count, groups);
  const size_t most = kernels.blocks->most_rows;
  share(threads, work, (count + most - 1) / most, [&](size_t part) {
    const size_t end = std::min(count, (part + 1) * most);
    for (size_t row = part * most; row < end;) {
      const uint32_t together = kernels.blocks->rows_together(end - row);
      kernels.blocks->round(x + row * columns_, columns_, together, groups,
                            rounded.rows().from(row, groups));
      row += together;
    }
  });
  const auto groups_of = [](const BlockPanels& part) { return (part.rows() + kWide - 1) / kWide; };
  size_t all = 0;
  for (const BlockPanels& part : blocks_) all += groups_of(part);
  share(threads, work, all, [&](size_t i) {
    auto part = blocks_.begin();
    float* to = y;
    for (; i >= groups_of(*part); ++part) {
      i -= groups_of(*part);
      to += part->rows();
    }
    BlockJob job = part->job(static_cast<uint32_t>(i) * kPanels);
    job.segments = segments_;
    if (count > 2 || job.panel_bytes <= kShortPanel)
      job.ahead = ahead_of(threads, i, groups_of(*part), job.panel_bytes);
    job.columns = std::min(kWide, job.columns);
    job.x = rounded.rows();
    job.rows = count;
    job.y = to + i * kWide;
    job.y_stride = rows_;
    kernels.blocks->multiply(job);
  });
}

void Matrix::multiply(const Kernels& kernels, ThreadPool& threads, const float* x, size_t count,
                      float* y, DType factors) const {
  if (!blocks_.empty()) return multiply_blocks(kernels, threads, x, count, y);
  PanelJob whole = job();
  whole.rows = count;
  whole.x = x;
  whole.x_stride = columns_;
  whole.y_stride = rows_;
  const uint64_t work = uint64_t{rows_} * columns_ * count;
  std::optional<ScratchMemory> rounded;
  if (type_ == DType::kBf16 && factors == DType::kBf16) {
    rounded.emplace(count * segments_ * whole.steps() * 2 * sizeof(uint16_t));
    auto* const pairs = reinterpret_cast<uint16_t*>(rounded->get());
    whole.x_bf16 = pairs;
    share(threads, work, (count + kGroupRows - 1) / kGroupRows,
          [&](size_t group) { round_group(kernels, whole, group, pairs); });
  }
  share(threads, work, (rows_ + kWide - 1) / kWide, [&](size_t g) {
    PanelJob group = whole;
    group.panels = data_.get() + g * kPanels * panel_bytes_;
    group.columns = std::min(kWide, rows_ - static_cast<uint32_t>(g) * kWide);
    group.y = y + g * kWide;
    if (count > 2 || panel_bytes_ <= kShortPanel)
      group.ahead = ahead_of(threads, g, (rows_ + kWide - 1) / kWide, panel_bytes_);
    kernels.multiply(group);
  });
}

}  // namespace mc::model
