// Defines Words of AVX-512 for block_words_body.h, and rounds eight rows together by VNNI. Included
// behind kernels_lanes512.h, as that is.
#pragma once

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

#include "model/kernels/block_words_body.h"

// Where a group of eight rows lies in a chunk of 8 or 16 rows (RoundedRows).
struct EightPlaces {
  int8_t* integers;
  float* scales;
  int32_t* minus_sums;
  float* shares;
  size_t rows;  // of the chunk

  EightPlaces(const RoundedRows& chunk, uint32_t group, size_t rows_, uint32_t first = 0)
      : integers(chunk.integers + (group * rows_ + first) * kGroup),
        scales(chunk.scales + group * rows_ + first),
        minus_sums(chunk.minus_sums + group * 3 * rows_ + first),
        shares(chunk.shares + group * 3 * rows_ + first),
        rows(rows_) {}
};

// A group of eight rows, rounded together: the same numbers as round_group_of gives.
struct EightRows {
  const float* x;  // the first row's group
  size_t stride;

  // The most of each row's sizes, twice.
  V most() const {
    V larger[8];
    MC_UNROLL
    for (uint32_t r = 0; r < 8; ++r)
      larger[r] = larger_sizes(V::load(x + r * stride), V::load(x + r * stride + kLanes));
    __m512 pairs[4];
    MC_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      pairs[i] = V::eights<V::Most>(larger[2 * i].v, larger[2 * i + 1].v);
    // Lane 4k and the next are of row k, the two behind them of row k + 4.
    const __m512 twos = V::twos<V::Most>(V::fours<V::Most>(pairs[0], pairs[1]),
                                         V::fours<V::Most>(pairs[2], pairs[3]));
    const __m512 ones = _mm512_max_ps(twos, _mm512_permute_ps(twos, 0xB1));
    const __m512i rows = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14);
    return {_mm512_permutexvar_ps(rows, ones)};
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
  // Of rows 2i and 2i + 1 the integers of steps 0 and 4 of both, then of steps 1 and 5, and so on.
  void integers(const float* inverse, __m512i (&two)[4]) const {
    MC_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      two[i] =
          _mm512_packs_epi16(words(2 * i, inverse[2 * i]), words(2 * i + 1, inverse[2 * i + 1]));
  }
  // out[i]: steps 2i and 2i + 1 of all rows.
  static void by_step(const __m512i (&two)[4], __m512i (&out)[4]) {
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
  // Rows 2i and 2i + 1, one behind the other.
  static __m512i by_row(__m512i two) {
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), two);
  }
  // The sums of each row's integers in two steps and the two behind them.
  static __m256i sums(__m512i a, __m512i b) {
    const __m512i ones = _mm512_set1_epi8(1);
    const __m512i all =
        _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, a), ones, b);
    return _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  }
  static void store(__m256i sums, __m256 scales, size_t at, const EightPlaces& out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.minus_sums + at),
                        _mm256_sub_epi32(_mm256_setzero_si256(), sums));
    _mm256_storeu_ps(out.shares + at, _mm256_mul_ps(scales, _mm256_cvtepi32_ps(sums)));
  }
  // Integers lie by row in chunks of 16, by step in others.
  template <bool kByRow>
  void round(const EightPlaces& out) const {
    const V sizes = most();
    const __mmask16 some = _mm512_cmp_ps_mask(sizes.v, _mm512_set1_ps(kLeastRounded), _CMP_GE_OQ);
    const __m512 steps = _mm512_set1_ps(127.0f);
    const __m256 scales = _mm512_castps512_ps256(_mm512_maskz_div_ps(some, sizes.v, steps));
    float inverse[kLanes];
    _mm512_storeu_ps(inverse, _mm512_maskz_div_ps(some, steps, sizes.v));
    __m512i two[4], rows[4];
    integers(inverse, two);
    by_step(two, rows);
    MC_UNROLL
    for (uint32_t i = 0; i < 4; ++i)
      _mm512_storeu_si512(out.integers + size_t{i} * 64, kByRow ? by_row(two[i]) : rows[i]);
    _mm256_storeu_ps(out.scales, scales);
    const __m256i first = sums(rows[0], rows[1]), second = sums(rows[2], rows[3]);
    store(first, scales, 0, out);
    store(second, scales, out.rows, out);
    store(_mm256_add_epi32(first, second), scales, 2 * out.rows, out);
  }
};
