// Only the products with blocks of integers: the other kernels are those of AVX-512.
#if defined(__x86_64__)
#include "model/kernels/kernels_x86.h"

MC_TARGET_BEGIN("avx512f,avx512dq,avx512bw,avx512vnni,fma")

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
  static constexpr uint32_t kRows = 8;  // that stay in registers together
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

MC_TARGET_END
#endif
