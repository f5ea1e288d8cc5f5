// Only the products with blocks of integers: the other kernels are those of AVX-512.
#if defined(__x86_64__)
#include "model/kernels/kernels_x86.h"

MC_TARGET_BEGIN("avx512f,avx512dq,avx512bw,avx512vnni,fma")

namespace mc::model::avx512vnni {
namespace {

#include "model/kernels/kernels_lanes512.h"

#include "model/kernels/block_words512.h"

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

void round_chunk(const float* x, size_t stride, uint32_t rows, uint32_t groups,
                 const RoundedRows& out) {
  if (rows != 8) return round_rows(x, stride, rows, groups, out);
  for (uint32_t g = 0; g < groups; ++g)
    EightRows{x + size_t{g} * kGroup, stride}.round<false>({out, g, 8});
}

}  // namespace

const BlockKernels kBlockKernels{round_chunk, multiply_blocks, 8};

}  // namespace mc::model::avx512vnni

MC_TARGET_END
#endif
