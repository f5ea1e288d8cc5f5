// Only the products with blocks of integers: the other kernels are those of AVX-512.
#if defined(__x86_64__)
#if !defined(__clang__)  // g++ 12's own header leaves the unused operand of max and min unset
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "model/kernels/kernel_dispatch.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vnni,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vnni,fma")
#endif

namespace mc::model::avx512vnni {
namespace {

#include "model/kernels/kernels_lanes512.h"

struct Words {
  __m512i v;

  static Words load(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
  static __m512i nibbles(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  Words low() const { return {nibbles(v)}; }
  Words high() const { return {nibbles(_mm512_srli_epi16(v, 4))}; }
  Words with_bits(const std::byte* bits, char value) const {
    __mmask64 mask;
    __builtin_memcpy(&mask, bits, sizeof mask);
    return {_mm512_mask_add_epi8(v, mask, v, _mm512_set1_epi8(value))};
  }
};

template <uint32_t kBits>
struct Dots {
  __m512i v;

  template <uint32_t kOffset>
  void start(int32_t minus_sum) {
    v = kOffset == 0
            ? _mm512_setzero_si512()
            : _mm512_slli_epi32(_mm512_set1_epi32(minus_sum), __builtin_ctz(kOffset | 256));
  }
  template <uint32_t kStep>
  void add(Words w, int32_t x) {
    v = _mm512_dpbusd_epi32(v, w.v, _mm512_set1_epi32(x));
  }
  V floats() const { return {_mm512_cvtepi32_ps(v)}; }
};

#include "model/kernels/block_kernels_body.h"

}  // namespace

const BlockKernels kBlockKernels{round_rows, multiply_blocks};

}  // namespace mc::model::avx512vnni

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
