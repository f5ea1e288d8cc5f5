#if defined(__x86_64__)
#include "model/kernels/kernels_x86.h"

MC_TARGET_BEGIN("avx512f,avx512dq,avx512bw,avx512bf16,fma")

namespace mc::model::avx512bf16 {
namespace {

#include "model/kernels/kernels_lanes512.h"

// VDPBF16PS: two fused multiply-adds a lane, the second of each pair first, exactly as elsewhere
// but that subnormal numbers count as zero.
[[gnu::always_inline]] inline V V::add_pair(V sum, uint32_t x, V w) {
  const __m512i pair = _mm512_set1_epi32(static_cast<int>(x));
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(pair),
                           reinterpret_cast<__m512bh>(_mm512_castps_si512(w.v)))};
}

[[gnu::always_inline]] inline V V::store_share(uint16_t* p) const {
  const auto bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}

#include "model/kernels/kernels_body.h"

}  // namespace

const Kernels kKernels{"avx512bf16",    multiply,
                       widen,           round,
                       normalize,       gate,
                       attend,          score_pairs,
                       add_pair_values, turn_words,
                       pair_rows,       soft_cap,
                       exponentials,    &avx512vnni::kBlockKernels,
                       kQueries};

}  // namespace mc::model::avx512bf16

MC_TARGET_END
#endif
