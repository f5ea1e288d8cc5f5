// Multiplies the matrices of a forward pass, by cuBLASLt or an own kernel. It computes y = x w'.
// The library is the device's. The dispatcher takes it only after a trial on each shape of weights:
// its numbers must be near the own kernel's, and a row's must be the same whatever is computed with
// it. Few rows get an algorithm of the library's that is made for few, if one of them gives the
// bits of the one for many.
//
// Errors: those of the device. Thread: one at a time.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device_buffer_pool.h"
#include "gpu/weights.h"
#include "model/files/dtype.h"

namespace mc::gpu {

// kAuto: the library if weights and activations have one 16-bit format, else the own kernel.
enum class Gemm : uint8_t { kAuto, kOwn, kLibrary };

class GemmDispatcher {
 public:
  // `factors`: the format of x; only the own kernel multiplies f32 by weights of another format.
  // `samples`: one matrix for each shape that will come.
  // Errors: kUnsupported: `gemm` is kLibrary, and the library cannot. Otherwise by() gives the
  // reason.
  static Result<GemmDispatcher> open(device::Device& device, DeviceBufferPool& pool,
                                     device::Stream& stream, Gemm gemm, model::DType weights,
                                     model::DType factors,
                                     const std::vector<const Matrix*>& samples);
  // y[rows][outputs], f32; `add`: added to y's old content. If the library fails, the own kernel
  // computes this product and all that follow; one log line says so.
  Result<> multiply(device::Stream& stream, const Matrix& w, const std::byte* x, std::byte* y,
                    size_t rows, bool add);
  // "cuBLASLt 13.1.0", or "own kernels (no cuBLASLt: ...)".
  const std::string& by() const { return by_; }
  bool by_library() const { return library_; }

 private:
  Result<> own(device::Stream& stream, const Matrix& w, const std::byte* x, std::byte* y,
               size_t rows, bool add) const;
  Result<> library(device::Stream& stream, const Matrix& w, const std::byte* x, std::byte* y,
                   size_t rows, bool add) const;
  Result<> try_out(DeviceBufferPool& pool, device::Stream& stream, const Matrix& w);

  struct Tuning {
    uint32_t rows = 0, choice = 0;  // as device::Product's; up to so many rows
  };
  device::Product::Type type_ = device::Product::Type::kF32;
  model::DType factors_ = model::DType::kF32;
  bool tensor_ = false, library_ = false;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Tuning>> tunings_;  // by outputs and k
  std::string kernel_, by_;
};

}  // namespace mc::gpu
