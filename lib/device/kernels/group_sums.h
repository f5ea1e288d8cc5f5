// Sums and other folds over the threads of a group, by warps, and vectors of four numbers.
//
// The host folds in the device's order, so that sums of floats have the same bits.
#pragma once
#include "device/kernels/group.h"

namespace {

constexpr uint32_t kWarp = 32;  // threads

struct alignas(16) Four {
  float of[4];
};
struct alignas(8) FourHalves {
  uint16_t of[4];
};
MC_DEVICE bool aligned_to(const void* p, uint32_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

struct Add {
  template <class T>
  MC_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
struct Greater {
  MC_DEVICE uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct Lesser {
  MC_DEVICE uint64_t operator()(uint64_t a, uint64_t b) const { return a < b ? a : b; }
};

#ifdef __CUDACC__

// From memory that is aligned to 16 bytes.
MC_DEVICE Four load_four(const float* from) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  return {x.x, x.y, x.z, x.w};
}
MC_DEVICE void store_four(void* to, FourHalves x) {  // to memory aligned to 8 bytes
  *reinterpret_cast<uint2*>(to) = {x.of[0] | static_cast<uint32_t>(x.of[1]) << 16,
                                   x.of[2] | static_cast<uint32_t>(x.of[3]) << 16};
}

// parts[w] is the fold of warp w's values: x ^ 16, then x ^ 8, down to x ^ 1.
template <class T, unsigned threads, class F>
MC_DEVICE void fold_warps(Own<T, 1, threads>& values, T* parts, F f) {
  T x = values.of(0)[0];
#pragma unroll
  for (uint32_t far = kWarp / 2; far > 0; far /= 2) x = f(x, __shfl_xor_sync(~0u, x, far));
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
}

// before[t] is the sum of the values of the threads of t's warp before t; parts[w] of warp w's.
template <unsigned threads>
MC_DEVICE void sum_warps(Own<uint64_t, 1, threads>& values, Own<uint64_t, 1, threads>& before,
                         uint64_t* parts) {
  const uint32_t lane = threadIdx.x % kWarp;
  uint64_t sum = values.of(0)[0];
#pragma unroll
  for (uint32_t far = 1; far < kWarp; far *= 2) {
    const uint64_t there = __shfl_up_sync(~0u, sum, far);
    if (lane >= far) sum += there;
  }
  before.of(0)[0] = sum - values.of(0)[0];
  if (lane == kWarp - 1) parts[threadIdx.x / kWarp] = sum;
}

#else

inline Four load_four(const float* from) {
  Four x;
  __builtin_memcpy(&x, __builtin_assume_aligned(from, 16), sizeof x);
  return x;
}

inline void store_four(void* to, FourHalves x) {
  __builtin_memcpy(__builtin_assume_aligned(to, 8), &x, sizeof x);
}

template <class T, unsigned threads, class F>
void fold_warps(Own<T, 1, threads>& values, T* parts, F f) {
  for (unsigned warp = 0; warp < threads / kWarp; ++warp) {
    T x[kWarp];
    for (unsigned lane = 0; lane < kWarp; ++lane) x[lane] = values.of(warp * kWarp + lane)[0];
    for (unsigned far = kWarp / 2; far > 0; far /= 2)
      for (unsigned lane = 0; lane < far; ++lane) x[lane] = f(x[lane], x[lane ^ far]);
    parts[warp] = x[0];
  }
}

template <unsigned threads>
void sum_warps(Own<uint64_t, 1, threads>& values, Own<uint64_t, 1, threads>& before,
               uint64_t* parts) {
  for (unsigned warp = 0; warp < threads / kWarp; ++warp) {
    uint64_t sum = 0;
    for (unsigned t = warp * kWarp; t < (warp + 1) * kWarp; ++t) {
      before.of(t)[0] = sum;
      sum += values.of(t)[0];
    }
    parts[warp] = sum;
  }
}

#endif

// The fold of all values, by way of shared memory: parts[threads / kWarp].
template <class T, unsigned threads, class F>
MC_DEVICE T fold(Own<T, 1, threads>& values, T* parts, F f) {
  barrier();
  fold_warps(values, parts, f);
  barrier();
  T all = parts[0];
  MC_UNROLL
  for (uint32_t warp = 1; warp < threads / kWarp; ++warp) all = f(all, parts[warp]);
  return all;
}

// before[t] is the sum of the values of the threads before t. Returns the sum of all.
template <unsigned threads>
MC_DEVICE uint64_t sums_before(Own<uint64_t, 1, threads>& values, Own<uint64_t, 1, threads>& before,
                               uint64_t* parts) {
  barrier();
  sum_warps(values, before, parts);
  barrier();
  MC_EACH_OF(threads, t) {
    uint64_t sum = 0;
    for (uint32_t warp = 0; warp < t / kWarp; ++warp) sum += parts[warp];
    before.of(t)[0] += sum;
  }
  uint64_t all = 0;
  for (uint32_t warp = 0; warp < threads / kWarp; ++warp) all += parts[warp];
  return all;
}

}  // namespace
