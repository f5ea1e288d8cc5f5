// Wraps tensor-core products and asynchronous copies into shared memory, for nvcc and host. A
// fragment belongs to a warp: in a product of 16 x 16 by 16 x 8, a lane holds 4 registers of A, 2
// of B and 4 sums (PTX, mma.m16n8k16). The host gathers the lanes of a warp and multiplies.
#pragma once
#include "device/kernels/group.h"

#ifdef __CUDACC__

namespace {

// Two numbers of 16 bits at an even place.
MC_DEVICE uint32_t two(const uint16_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

MC_DEVICE void mma(Bf16, float* c, const uint32_t* a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
MC_DEVICE void mma(F16, float* c, const uint32_t* a, const uint32_t* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two finite numbers, rounded; the first in the lower half.
MC_DEVICE uint32_t two_rounded(Bf16, float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
MC_DEVICE uint32_t two_rounded(F16, float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// All warps: sums[m][n] += a[m] b[n], kM x kN fragments each, from the numbers `sums_at` and `a_at`
// on.
template <class T, int kM, int kN, int kSums, int kA>
MC_DEVICE void multiply_fragments(Own<float, kSums>& sums, Own<uint32_t, kA>& a,
                                  Own<uint32_t, kN * 2>& b, int sums_at = 0, int a_at = 0) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
      mma(T(), sums.of(0) + sums_at + (m * kN + n) * 4, a.of(0) + a_at + m * 4, b.of(0) + n * 2);
}

// The four lanes of a row of sums: the greatest of what they have, and what they have together, in
// the order (0 + 1) + (2 + 3).
template <int n>
MC_DEVICE void quads_most(Own<float, n>& values) {
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, values.of(0)[i], apart);
      values.of(0)[i] = other > values.of(0)[i] ? other : values.of(0)[i];
    }
}
template <int n>
MC_DEVICE void quads_sum(Own<float, n>& values) {
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2)
      values.of(0)[i] += __shfl_xor_sync(0xffffffffu, values.of(0)[i], apart);
}

// 16 bytes into shared memory, from aligned memory; zeros where there is nothing.
MC_DEVICE void copy16(void* shared, const void* from, bool there) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
      : "memory");
}
MC_DEVICE void copies_end() { asm("cp.async.commit_group;" ::: "memory"); }
// All of this thread's copies are there but those of the last kUnderWay ends.
template <int kUnderWay>
MC_DEVICE void copies_wait() {
  asm("cp.async.wait_group %0;" ::"n"(kUnderWay) : "memory");
}

}  // namespace

#else

template <class T, int kM, int kN, int kSums, int kA>
void multiply_fragments(Own<float, kSums>& sums, Own<uint32_t, kA>& a, Own<uint32_t, kN * 2>& b,
                        int sums_at = 0, int a_at = 0) {
  const auto half = [](uint32_t pair, uint32_t which) {
    return to_float(T{static_cast<uint16_t>(pair >> 16 * which)});
  };
  for (unsigned warp = 0; warp < MC_KERNEL_THREADS; warp += 32)
    for (int m = 0; m < kM; ++m)
      for (int n = 0; n < kN; ++n) {
        float left[16][16], right[16][8];  // [row][k], [k][column]
        for (unsigned lane = 0; lane < 32; ++lane)
          for (unsigned i = 0; i < 8; ++i) {  // registers, then halves
            const unsigned row = lane / 4 + i / 2 % 2 * 8, k = lane % 4 * 2 + i / 4 * 8 + i % 2;
            left[row][k] = half(a.of(warp + lane)[a_at + m * 4 + static_cast<int>(i / 2)], i % 2);
            if (i < 4)
              right[lane % 4 * 2 + i / 2 * 8 + i % 2][lane / 4] =
                  half(b.of(warp + lane)[n * 2 + static_cast<int>(i / 2)], i % 2);
          }
        for (unsigned lane = 0; lane < 32; ++lane)
          for (unsigned i = 0; i < 4; ++i) {
            const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float& sum = sums.of(warp + lane)[sums_at + (m * kN + n) * 4 + static_cast<int>(i)];
            // The product of two numbers of 16 bits is exact: no need of fma.
            for (unsigned k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
          }
      }
}

inline void copy16(void* shared, const void* from, bool there) {
  if (there)
    __builtin_memcpy(shared, from, 16);
  else
    __builtin_memset(shared, 0, 16);
}
inline uint32_t two(const uint16_t* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return pair;
}
template <class T>
uint32_t two_rounded(T, float low, float high) {
  T a, b;
  from_float(low, a);
  from_float(high, b);
  return a.bits | static_cast<uint32_t>(b.bits) << 16;
}
template <int n>
void quads_most(Own<float, n>& values) {
  for (unsigned t = 0; t < MC_KERNEL_THREADS; t += 4)
    for (int i = 0; i < n; ++i) {
      float most = values.of(t)[i];
      for (unsigned lane = 1; lane < 4; ++lane)
        if (values.of(t + lane)[i] > most) most = values.of(t + lane)[i];
      for (unsigned lane = 0; lane < 4; ++lane) values.of(t + lane)[i] = most;
    }
}
template <int n>
void quads_sum(Own<float, n>& values) {
  for (unsigned t = 0; t < MC_KERNEL_THREADS; t += 4)
    for (int i = 0; i < n; ++i) {
      const float sum =
          (values.of(t)[i] + values.of(t + 1)[i]) + (values.of(t + 2)[i] + values.of(t + 3)[i]);
      for (unsigned lane = 0; lane < 4; ++lane) values.of(t + lane)[i] = sum;
    }
}
inline void copies_end() {}
template <int kUnderWay>
void copies_wait() {}

#endif
