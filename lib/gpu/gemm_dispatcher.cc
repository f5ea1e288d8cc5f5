#include "gpu/gemm_dispatcher.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "base/random.h"
#include "gpu/kernels.h"

namespace mc::gpu {
namespace {

constexpr uint32_t kTriedRows = 96;
constexpr uint32_t kFewRows[] = {16, 64};  // that algorithms are chosen for, ascending
constexpr uint32_t kChoices = 8;

Result<> finish_all(device::Stream& stream) {
  MC_TRY(const auto event, stream.record());
  return event->wait();
}

device::Product::Type product_type(model::DType type) {
  switch (type) {
    case model::DType::kF32: return device::Product::Type::kF32;
    case model::DType::kF16: return device::Product::Type::kF16;
    case model::DType::kBf16: return device::Product::Type::kBf16;
  }
  return device::Product::Type::kF32;
}

float* numbers_at(std::byte* at) { return reinterpret_cast<float*>(at); }

}  // namespace

Result<GemmDispatcher> GemmDispatcher::open(device::Device& device, DeviceBufferPool& pool,
                                            device::Stream& stream, Gemm gemm, model::DType weights,
                                            model::DType factors,
                                            const std::vector<const Matrix*>& samples) {
  GemmDispatcher p;
  p.factors_ = factors;
  p.tensor_ = factors != model::DType::kF32;
  p.type_ = product_type(weights);
  p.kernel_ = named(p.tensor_ ? MC_TENSOR : MC_MULTIPLY, weights);
  const auto attempt = [&]() -> Result<std::string> {
    if (gemm == Gemm::kOwn) return fail(Code::kUnsupported, "as requested");
    if (gemm == Gemm::kAuto && !p.tensor_)
      return fail(Code::kUnsupported, "activations of f32 are exact");
    if (weights != factors)
      return fail(Code::kUnsupported, "weights of %s with activations of %s", model::name(weights),
                  model::name(factors));
    MC_TRY(std::string name, device.products());
    for (const Matrix* const w : samples) {
      const auto tried = p.try_out(pool, stream, *w);
      if (!tried)
        return fail(tried.error().code, "%s: %s", name.c_str(), tried.error().what.c_str());
    }
    return name;
  };
  auto name = attempt();
  // A lost device is an error of its own, not a reason against the library.
  if (!name && name.error().code == Code::kUnavailable) return fail(name.error());
  if (!name && gemm == Gemm::kLibrary)
    return fail(Code::kUnsupported, "--gemm cublaslt: %s; give --gemm own, or auto",
                name.error().what.c_str());
  p.library_ = name.has_value();
  p.by_ = name ? *name : "own kernels (" + name.error().what + ")";
  return p;
}

Result<> GemmDispatcher::own(device::Stream& stream, const Matrix& m, const std::byte* x,
                             std::byte* y, size_t rows, bool add) const {
  const auto n = static_cast<uint32_t>(rows);
  if (tensor_)
    return launch(stream, kernel_, {over(m.rows, MC_TENSOR_OUTPUTS), over(rows, MC_TENSOR_ROWS)},
                  m.memory.data(), x, numbers_at(y), m.rows, m.columns, n, add ? 1u : 0u);
  return launch(stream, kernel_, {over(m.rows, MC_PLAIN_OUTPUTS), over(rows, MC_PLAIN_ROWS)},
                m.memory.data(), reinterpret_cast<const float*>(x), numbers_at(y), m.rows,
                m.columns, n, m.segments, add ? 1u : 0u);
}

Result<> GemmDispatcher::library(device::Stream& stream, const Matrix& m, const std::byte* x,
                                 std::byte* y, size_t rows, bool add) const {
  device::Product p{type_, m.memory.data(), x, y, m.rows, m.columns, static_cast<uint32_t>(rows),
                    add};
  if (const auto it = tunings_.find({m.rows, m.columns}); it != tunings_.end())
    for (const Tuning& t : it->second)
      if (rows <= t.rows) {
        p.tuned_rows = t.rows;
        p.choice = t.choice;
        break;
      }
  return stream.multiply(p);
}

Result<> GemmDispatcher::multiply(device::Stream& stream, const Matrix& m, const std::byte* x,
                                  std::byte* y, size_t rows, bool add) {
  if (!library_) return own(stream, m, x, y, rows, add);
  const auto done = library(stream, m, x, y, rows, add);
  if (done || done.error().code == Code::kUnavailable) return done;
  log_warn("gpu", "%s failed, own kernels multiply from now on: %s", by_.c_str(),
           done.error().what.c_str());
  library_ = false;
  by_ = "own kernels (" + done.error().what + ")";
  return own(stream, m, x, y, rows, add);
}

// Computes the last row of many rows by both; then by the library alone and among few rows; then
// by its algorithms for few rows, to find the best of them that gives the same bits.
Result<> GemmDispatcher::try_out(DeviceBufferPool& pool, device::Stream& stream, const Matrix& m) {
  const uint64_t x_row = uint64_t{m.columns} * size_of(factors_), y_row = m.rows * sizeof(float);
  MC_TRY(const DeviceBufferPool::Buffer host, pool.take(kTriedRows * x_row, true));
  MC_TRY(const DeviceBufferPool::Buffer x, pool.take(kTriedRows * x_row));
  MC_TRY(const DeviceBufferPool::Buffer y, pool.take(kTriedRows * y_row));
  Random random(m.rows);
  std::vector<float> values(uint64_t{kTriedRows} * m.columns);
  for (float& v : values) v = static_cast<float>(random.next() >> 40) * 0x1p-23f - 1.0f;
  model::from_floats(factors_, values.data(), host->data(), values.size());
  const auto last_of = [&](uint32_t rows, bool by_library) -> Result<std::vector<float>> {
    MC_TRY_(stream.copy(x->data(), host->data() + (kTriedRows - rows) * x_row, rows * x_row));
    MC_TRY_(by_library ? library(stream, m, x->data(), y->data(), rows, false)
                       : own(stream, m, x->data(), y->data(), rows, false));
    std::vector<float> row(m.rows);
    MC_TRY_(stream.copy(reinterpret_cast<std::byte*>(row.data()), y->data() + (rows - 1) * y_row,
                        y_row));
    MC_TRY_(finish_all(stream));
    return row;
  };
  MC_TRY(const auto want, last_of(kTriedRows, false));
  MC_TRY(const auto got, last_of(kTriedRows, true));
  float most = 0, worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    most = std::max(most, std::fabs(want[i]));
    // NaN is further off than any number.
    const float apart = std::fabs(got[i] - want[i]);
    worst = apart <= worst ? worst : apart;
    if (std::isnan(apart)) worst = INFINITY;
  }
  if (worst > 1e-3f * most)
    return fail(Code::kUnsupported, "%u outputs of %u are up to %g off", m.rows, m.columns,
                static_cast<double>(worst));
  for (const uint32_t rows : {1u, 17u}) {
    MC_TRY(const auto fewer, last_of(rows, true));
    if (std::memcmp(fewer.data(), got.data(), y_row) != 0)
      return fail(Code::kUnsupported, "a row of %u outputs of %u depends on those beside it",
                  m.rows, m.columns);
  }
  std::vector<Tuning> found;
  std::vector<Tuning>& tried = tunings_[{m.rows, m.columns}];
  const auto same_bits = [&](Tuning tuning) -> Result<bool> {
    tried = {tuning};
    for (const uint32_t rows : {1u, tuning.rows / 2 + 1, tuning.rows}) {
      MC_TRY(const auto row, last_of(rows, true));
      if (std::memcmp(row.data(), got.data(), y_row) != 0) return false;
    }
    return true;
  };
  for (const uint32_t few : kFewRows)
    for (uint32_t choice = 0; choice < kChoices; ++choice) {
      const auto same = same_bits({few, choice});
      if (!same && same.error().code != Code::kUnsupported) return fail(same.error());
      if (!same) break;  // it has no more of them
      if (!*same) continue;
      found.push_back({few, choice});
      break;
    }
  tried = std::move(found);
  log_debug("gpu", "%u outputs of %u: %zu of %zu numbers of few rows have algorithms of their own",
            m.rows, m.columns, tried.size(), std::size(kFewRows));
  return {};
}

}  // namespace mc::gpu
