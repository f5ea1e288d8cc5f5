#if defined(__x86_64__)
#if !defined(__clang__)  // g++ 12's own header leaves the unused operand of max and min unset
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "model/kernels_sets.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,fma")
#endif

namespace mc::model::avx512 {
namespace {

struct V {
  __m512 v;

  static V load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static V load_bf16(const std::byte* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  static V all(float x) { return {_mm512_set1_ps(x)}; }
  static V zero() { return {_mm512_setzero_ps()}; }
  static V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
  static V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
  static V greater_of(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
  static V lesser_of(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
  static V round(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
  static V scale(V a, V n) { return {_mm512_scalef_ps(a.v, n.v)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  float sum() const {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

#include "model/kernels_body.h"

}  // namespace

const Kernels kKernels{"avx512", multiply, normalize, gate, attend};

}  // namespace mc::model::avx512

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
