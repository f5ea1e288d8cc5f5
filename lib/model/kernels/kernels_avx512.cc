#if defined(__x86_64__)
#if !defined(__clang__)  // g++ 12's own header leaves the unused operand of max and min unset
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "model/kernels/kernel_dispatch.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,fma")
#endif

namespace mc::model::avx512 {
namespace {

#include "model/kernels/kernels_lanes512.h"

[[gnu::always_inline]] inline V V::add_pair(V sum, uint32_t x, V w) {
  const V pair{_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x)))};
  sum = fma(second_half(pair), second_half(w), sum);
  return fma(first_half(pair), first_half(w), sum);
}

#include "model/kernels/kernels_body.h"

}  // namespace

// With VNNI, or without.
const Kernels kKernels{"avx512",  multiply,     round,
                       normalize, gate,         attend,
                       soft_cap,  exponentials, &avx512vnni::kBlockKernels};
const Kernels kKernelsOfFloats{"avx512", multiply, round,        normalize,           gate,
                               attend,   soft_cap, exponentials, &avx2::kBlockKernels};

}  // namespace mc::model::avx512

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
