// Lets nvcc compile a kernel and the host run the same source. A group of threads goes through
// phases together. A phase is
//
//   MC_EACH(t) { what thread t does }
//
// which on the host is a loop over the threads. What a thread keeps from one phase to the next is
// an Own; what the group shares is MC_SHARED; barrier() stands between a phase that writes shared
// memory and one that reads what other threads wrote. Whatever is outside of phases is the same for
// all threads: arguments, blockIdx, loops. The host cannot detect a missing barrier.
//
// A kernel has groups of MC_KERNEL_THREADS. One of another size (mc_group_threads) is MC_GLOBAL_OF
// its size, and so are its phases, MC_EACH_OF(size, t), and its Owns.
#pragma once
#include <stdint.h>

#include "device/kernels/model_kernels.h"

#ifdef __CUDACC__

#define MC_GLOBAL_OF(threads) extern "C" __global__ void __launch_bounds__(threads)
// Of few enough registers that so many groups share a multiprocessor.
#define MC_GLOBAL_BESIDE(groups) \
  extern "C" __global__ void __launch_bounds__(MC_KERNEL_THREADS, groups)
#define MC_DEVICE __device__ __forceinline__
#define MC_SHARED __shared__
#define MC_UNROLL _Pragma("unroll")
#define MC_EACH_OF(threads, t) \
  for (unsigned t = threadIdx.x, once_##t = 1; once_##t != 0; once_##t = 0)

namespace {
MC_DEVICE void barrier() { __syncthreads(); }
template <class T, int n, unsigned threads = MC_KERNEL_THREADS>
struct Own {
  T values[n];
  MC_DEVICE T* of(unsigned) { return values; }
};
MC_DEVICE float from_bits(uint32_t bits) { return __uint_as_float(bits); }
MC_DEVICE uint32_t bits_of(float value) { return __float_as_uint(value); }
MC_DEVICE uint32_t low_bits_of(double value) {
  return static_cast<uint32_t>(__double2loint(value));
}
// Threads of a group may do it at once. Returns the sum before.
MC_DEVICE uint32_t add_together(uint32_t& sum, uint32_t n) { return atomicAdd(&sum, n); }
// The upper half of a x b.
MC_DEVICE uint64_t high_product(uint64_t a, uint64_t b) { return __umul64hi(a, b); }
MC_DEVICE float greater(float a, float b) { return fmaxf(a, b); }
// 2^x to about 22 bits, one instruction: 0 for minus infinity.
MC_DEVICE float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
}  // namespace

#else  // the host: kernels_on_host.cc

#define MC_GLOBAL_OF(threads) void
#define MC_GLOBAL_BESIDE(groups) void
#define MC_DEVICE inline
#define MC_SHARED
#define MC_UNROLL
#define MC_EACH_OF(threads, t) for (unsigned t = 0; t < (threads); ++t)

inline void barrier() {}
template <class T, int n, unsigned threads = MC_KERNEL_THREADS>
struct Own {
  T values[threads][n];
  T* of(unsigned t) { return values[t]; }
};
inline float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
inline uint32_t low_bits_of(double value) {
  return static_cast<uint32_t>(__builtin_bit_cast(uint64_t, value));
}
inline uint32_t add_together(uint32_t& sum, uint32_t n) {
  const uint32_t before = sum;
  sum += n;
  return before;
}
inline float greater(float a, float b) { return a > b ? a : b; }
inline float power_of_two(float x) { return __builtin_exp2f(x); }
__extension__ using Wide = unsigned __int128;
inline uint64_t high_product(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

#endif

#define MC_GLOBAL MC_GLOBAL_OF(MC_KERNEL_THREADS)
#define MC_EACH(t) MC_EACH_OF(MC_KERNEL_THREADS, t)

namespace {

// The formats of weights and KV, as float and back: to the nearest, ties to even.
struct F32 {
  float value;
};
struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
MC_DEVICE float to_float(F32 x) { return x.value; }
MC_DEVICE float to_float(Bf16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }
MC_DEVICE float to_float(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1f, fraction = x.bits & 0x3ffu;
  if (exponent == 0)  // zero and subnormals are fraction x 2^-24
    return from_bits(bits_of(static_cast<float>(fraction) * 5.9604644775390625e-8f) | sign);
  return from_bits(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}
MC_DEVICE void from_float(float value, F32& out) { out.value = value; }
MC_DEVICE void from_float(float value, Bf16& out) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    out.bits = static_cast<uint16_t>((bits >> 16) | 0x40);
  else
    out.bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
MC_DEVICE void from_float(float value, F16& out) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 rounds to steps of 2^-24
    half = bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1) - 0x38000000u) >> 13;
  }
  out.bits = static_cast<uint16_t>(sign | half);
}

constexpr uint32_t kLanes = 16;  // partial sums of a sum over a row, as on the CPU

MC_DEVICE uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
// Lanes added in the fixed tree; they are lost.
MC_DEVICE float tree_sum(float* lanes) {
  for (uint32_t half = kLanes / 2; half > 0; half /= 2)
    for (uint32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}
// e^x for x <= 88; below -87 it is as for -87 (Cephes).
MC_DEVICE float exponential(float x) {
  x = x > -87.0f ? x : -87.0f;
  // Adding 1.5 x 2^23 rounds to a whole number, which the lowest bits then are.
  const float whole = x * 1.44269504088896341f + 12582912.0f;
  const float n = whole - 12582912.0f;
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(r * r, p, r + 1.0f);
  return p * from_bits((bits_of(whole) << 23) + 0x3f800000u);
}

}  // namespace

// One kernel for each format.
#define MC_FOR_FORMATS(make) make(f32, F32) make(f16, F16) make(bf16, Bf16)
