// The products of a forward pass: y = x w', by the device's library of matrix products or by a
// kernel of this build. The library is taken after it was tried: on each shape of weights, its
// numbers must be near the kernel's, and a row's the same whatever is computed with it.
//
// Thread: one at a time. Errors: those of the device.
#pragma once
#include <string>
#include <vector>

#include "gpu/device_buffer_pool.h"
#include "gpu/weights.h"
#include "model/files/dtype.h"

namespace mc::gpu {

// kAuto: the library's where weights are multiplied by their own format of 16 bits, else the own.
enum class Gemm : uint8_t { kAuto, kOwn, kLibrary };

class GemmDispatcher {
 public:
  // `factors`: the format of x; f32 with weights of another format are the own kernel's alone.
  // `samples`: one matrix for each shape that will come.
  // kUnsupported: the library is asked for, and cannot; otherwise why_own() says it.
  static Result<GemmDispatcher> open(device::Device& device, DeviceBufferPool& pool,
                                     device::Stream& stream, Gemm gemm, model::DType weights,
                                     model::DType factors,
                                     const std::vector<const Matrix*>& samples);
  // y[rows][outputs], f32; added to what is there, or not. Should the library fail, the own kernel
  // does this product and all that follow, which is logged once.
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
  Result<> try_out(DeviceBufferPool& pool, device::Stream& stream, const Matrix& w) const;

  device::Product::Type type_ = device::Product::Type::kF32;
  model::DType factors_ = model::DType::kF32;
  bool tensor_ = false, library_ = false;
  std::string kernel_, by_;
};

}  // namespace mc::gpu
