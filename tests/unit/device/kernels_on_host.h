// The kernels of lib/device/kernels run by the host: the same source, compiled as C++, one thread
// of one block after another. Only for kernels whose threads do not wait for each other.
#pragma once
#include <cstdint>

#include "device/kernels/copy_kernels.h"

namespace mc::device::on_host {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
inline Index threadIdx, blockIdx;  // as CUDA names them
struct alignas(16) uint4 {         // likewise: an access that is not aligned is the sanitizer's
  unsigned x, y, z, w;
};
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}

#define __device__
#define __global__ inline
#define __launch_bounds__(threads)
#include "device/kernels/copy.cu"
#undef __device__
#undef __global__
#undef __launch_bounds__

// Calls the kernel for each thread of a grid.
template <class Kernel>
void launch(unsigned x, unsigned y, const Kernel& kernel) {
  for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x)
    for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y)
      for (threadIdx.x = 0; threadIdx.x < MC_COPY_THREADS; ++threadIdx.x) kernel();
}

}  // namespace mc::device::on_host
