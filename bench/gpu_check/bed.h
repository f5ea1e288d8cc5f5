// Arrays on a device, and comparisons, for the checks of the forward pass's kernels.
#pragma once
#include <cmath>
#include <vector>

#include "base/random.h"
#include "bench/gpu_check/check.h"
#include "gpu/kernels.h"

namespace mc::gpu_check {

using gpu::launch;
using gpu::named;
using gpu::over;
using model::DType;
using Values = std::vector<float>;
using Buffer = device::Memory;

struct Bed {  // a device, a stream, and what kernels work on
  device::DevicePtr device;
  std::unique_ptr<device::Stream> stream;

  static Result<Bed> make(const Bench& b) {
    Bed bed{b.device, nullptr};
    MC_TRY(bed.stream, b.device->open_stream());
    return bed;
  }
  Result<Buffer> put(const void* from, uint64_t bytes) {
    MC_TRY(Buffer room, device->allocate(bytes));
    MC_TRY_(finish(*stream, [&] {
      return stream->copy(room.data(), static_cast<const std::byte*>(from), bytes);
    }));
    return room;
  }
  Result<Buffer> put(const Values& values, DType type) {
    std::vector<std::byte> bytes(values.size() * size_of(type));
    model::from_floats(type, values.data(), bytes.data(), values.size());
    return put(bytes.data(), bytes.size());
  }
  Result<Values> get(const Buffer& room, DType type) {
    std::vector<std::byte> bytes(room.size());
    MC_TRY_(finish(*stream, [&] { return stream->copy(bytes.data(), room.data(), bytes.size()); }));
    Values values(bytes.size() / size_of(type));
    model::to_floats(type, bytes.data(), values.data(), values.size());
    return values;
  }
  template <class... A>
  Result<> run(const std::string& kernel, gpu::Groups groups, A... arguments) {
    return finish(*stream, [&] { return launch(*stream, kernel, groups, arguments...); });
  }
};

inline float* at(const Buffer& room) { return reinterpret_cast<float*>(room.data()); }
inline const mc_row* rows_at(const Buffer& room) {
  return reinterpret_cast<const mc_row*>(room.data());
}

inline Values numbers(size_t n, uint64_t seed, DType as = DType::kF32) {
  Random random(seed);
  Values values(n);
  for (float& v : values) v = static_cast<float>(random.next() >> 40) * 0x1p-23f - 1.0f;
  std::vector<std::byte> bytes(n * size_of(as));
  model::from_floats(as, values.data(), bytes.data(), n);
  model::to_floats(as, bytes.data(), values.data(), n);
  return values;
}

inline Result<> near(const Values& got, const std::vector<double>& want, double tolerance,
                     const std::string& what) {
  if (got.size() != want.size()) return fail(Code::kCorrupt, "%s: sizes differ", what.c_str());
  for (size_t i = 0; i < want.size(); ++i)
    if (!(std::fabs(got[i] - want[i]) <= tolerance * (1 + std::fabs(want[i]))))
      return fail(Code::kCorrupt, "%s: number %zu is %g, not %g", what.c_str(), i,
                  static_cast<double>(got[i]), want[i]);
  return {};
}
inline double tolerance_of(DType type) {
  return type == DType::kF32 ? 1e-5 : type == DType::kF16 ? 1e-3 : 8e-3;
}
inline constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

}  // namespace mc::gpu_check
