#if defined(__x86_64__)
#include "model/kernels/kernels_x86.h"

MC_TARGET_BEGIN("avx512f,avx512dq,avx512bw,fma")

namespace mc::model::avx512 {
namespace {

#include "model/kernels/kernels_lanes512.h"

[[gnu::always_inline]] inline V V::add_pair(V sum, uint32_t x, V w) {
  const V pair{_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x)))};
  sum = fma(second_half(pair), second_half(w), sum);
  return fma(first_half(pair), first_half(w), sum);
}
[[gnu::always_inline]] inline V V::store_share(uint16_t* p) const {
  store_bf16(p);
  return second_half({_mm512_castsi512_ps(rounded())});
}

#include "model/kernels/kernels_body.h"

}  // namespace

// With VNNI, or without.
const Kernels kKernels{"avx512",        multiply,
                       widen,           round,
                       normalize,       gate,
                       attend,          score_pairs,
                       add_pair_values, turn_words,
                       pair_rows,       soft_cap,
                       exponentials,    &avx512vnni::kBlockKernels,
                       kQueries};
const Kernels kKernelsOfFloats{"avx512",        multiply,
                               widen,           round,
                               normalize,       gate,
                               attend,          score_pairs,
                               add_pair_values, turn_words,
                               pair_rows,       soft_cap,
                               exponentials,    &avx2::kBlockKernels,
                               kQueries};

}  // namespace mc::model::avx512

MC_TARGET_END
#endif
