#if defined(__x86_64__)
#include <immintrin.h>

#include "model/kernels/kernel_dispatch.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace mc::model::avx2 {
namespace {

struct V {
  __m256 a, b;  // lanes 0 to 7, 8 to 15

  static __m256 half_scale(__m256 x, __m256 n) {  // both factors are normal numbers
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i other = _mm256_sub_epi32(whole, half);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(other, bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
  }
  static V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static __m256 eight_firsts(__m256 pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
  }
  static __m256 eight_seconds(__m256 pairs) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    return _mm256_and_ps(pairs, _mm256_castsi256_ps(mask));
  }
  static V first_half(V pairs) { return {eight_firsts(pairs.a), eight_firsts(pairs.b)}; }
  static V second_half(V pairs) { return {eight_seconds(pairs.a), eight_seconds(pairs.b)}; }
  static V add_pair(V sum, uint32_t x, V w) {
    const __m256 pair = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(x)));
    sum = fma({eight_seconds(pair), eight_seconds(pair)}, second_half(w), sum);
    return fma({eight_firsts(pair), eight_firsts(pair)}, first_half(w), sum);
  }
  static V all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static V fma(V x, V y, V z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static V add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static V sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static V mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static V div(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static V greater_of(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static V lesser_of(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static V round(V x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
  }
  static V scale(V x, V n) { return {half_scale(x.a, n.a), half_scale(x.b, n.b)}; }
  void store(float* p) const {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }
  static __m256i eight_rounded(__m256 x) {
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    return _mm256_srli_epi32(_mm256_add_epi32(u, up), 16);
  }
  void store_bf16(uint16_t* p) const {
    const __m256i mixed = _mm256_packus_epi32(eight_rounded(a), eight_rounded(b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_permute4x64_epi64(mixed, 0b11'01'10'00));
  }
  float sum() const {
    const __m256 eight = _mm256_add_ps(a, b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

#include "model/kernels/kernels_body.h"

}  // namespace

const Kernels kKernels{"avx2", multiply, round, normalize, gate, attend, soft_cap, exponentials};

}  // namespace mc::model::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
