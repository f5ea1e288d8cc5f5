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

// A group of eight rows, rounded together: the same numbers as round_group_rows gives.
struct EightRows {
  const float* x;  // the first row's group
  size_t stride;

  // The most of each row's sizes, twice. False: some may be no number.
  bool sizes(V& most) const {
    V larger[8], all = V::zero();
    MC_UNROLL
    for (uint32_t r = 0; r < 8; ++r) {
      larger[r] = larger_of(V::load(x + r * stride), V::load(x + r * stride + kLanes));
      all = V::add(all, larger[r]);
    }
    if (_mm512_cmp_ps_mask(all.v, all.v, _CMP_UNORD_Q) != 0) return false;
    __m512 pairs[4];
    MC_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      pairs[i] = V::eights<V::Most>(larger[2 * i].v, larger[2 * i + 1].v);
    // Lane 4k and the next are of row k, the two behind them of row k + 4.
    const __m512 twos = V::twos<V::Most>(V::fours<V::Most>(pairs[0], pairs[1]),
                                         V::fours<V::Most>(pairs[2], pairs[3]));
    const __m512 ones = _mm512_max_ps(twos, _mm512_permute_ps(twos, 0xB1));
    const __m512i rows = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
    most = {_mm512_permutexvar_ps(rows, ones)};
    return true;
  }
  // As round_group_of has it.
  static V larger_of(V a, V b) {
    return V::greater_of(V::greater_of(a, V::sub(V::zero(), a)),
                         V::greater_of(b, V::sub(V::zero(), b)));
  }
  static __m512i rounded(const float* from, V inverse) {
    const V v = V::round(V::mul(V::load(from), inverse));
    return _mm512_cvtps_epi32(V::lesser_of(V::greater_of(v, V::all(-127.0f)), V::all(127.0f)).v);
  }
  // A row's integers in 16 bits: of each four the ones 16 behind follow.
  __m512i words(uint32_t row, float inverse) const {
    const float* const from = x + row * stride;
    return _mm512_packs_epi32(rounded(from, V::all(inverse)),
                              rounded(from + kLanes, V::all(inverse)));
  }
  // out[i]: steps 2i and 2i + 1 of all rows.
  void integers(const float* inverse, __m512i (&out)[4]) const {
    __m512i two[4];
    MC_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      two[i] =
          _mm512_packs_epi16(words(2 * i, inverse[2 * i]), words(2 * i + 1, inverse[2 * i + 1]));
    // Steps 0 to 3 of four rows, [step][row]; one further the steps behind them.
    const __m512i first =
        _mm512_setr_epi32(0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(1));
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(4));
    MC_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {
      const __m512i steps = half == 0 ? first : last;
      const __m512i a = _mm512_permutex2var_epi32(two[0], steps, two[1]);
      const __m512i b = _mm512_permutex2var_epi32(two[2], steps, two[3]);
      out[2 * half] = _mm512_permutex2var_epi64(a, low, b);
      out[2 * half + 1] = _mm512_permutex2var_epi64(a, high, b);
    }
  }
  // The sums of each row's integers in two steps and the two behind them.
  static __m256i sums(__m512i a, __m512i b) {
    const __m512i ones = _mm512_set1_epi8(1);
    const __m512i all =
        _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, a), ones, b);
    return _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  }
  static void store(__m256i sums, __m256 scales, size_t at, const RoundedRows& out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.minus_sums + at),
                        _mm256_sub_epi32(_mm256_setzero_si256(), sums));
    _mm256_storeu_ps(out.shares + at, _mm256_mul_ps(scales, _mm256_cvtepi32_ps(sums)));
  }
  bool round(uint32_t group, const RoundedRows& out) const {
    V most;
    if (!sizes(most)) return false;
    const __mmask16 some = _mm512_cmp_ps_mask(most.v, _mm512_set1_ps(kLeastRounded), _CMP_GE_OQ);
    const __m512 steps = _mm512_set1_ps(127.0f);
    const __m256 scales = _mm512_castps512_ps256(_mm512_maskz_div_ps(some, most.v, steps));
    float inverse[kLanes];
    _mm512_storeu_ps(inverse, _mm512_maskz_div_ps(some, steps, most.v));
    __m512i rows[4];
    integers(inverse, rows);
    MC_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      _mm512_storeu_si512(out.integers + size_t{group} * 8 * kGroup + size_t{i} * 64, rows[i]);
    _mm256_storeu_ps(out.scales + size_t{group} * 8, scales);
    const __m256i first = sums(rows[0], rows[1]), second = sums(rows[2], rows[3]);
    const size_t at = size_t{group} * 24;
    store(first, scales, at, out);
    store(second, scales, at + 8, out);
    store(_mm256_add_epi32(first, second), scales, at + 16, out);
    return true;
  }
};

void round_chunk(const float* x, size_t stride, uint32_t rows, uint32_t groups,
                 const RoundedRows& out) {
  if (rows != 8) return round_rows(x, stride, rows, groups, out);
  for (uint32_t g = 0; g < groups; ++g)
    if (!EightRows{x + size_t{g} * kGroup, stride}.round(g, out))
      round_group_rows(x, stride, rows, g, out);
}

}  // namespace

const BlockKernels kBlockKernels{round_chunk, multiply_blocks};

}  // namespace mc::model::avx512vnni

MC_TARGET_END
#endif
