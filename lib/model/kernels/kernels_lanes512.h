// Defines the 16 lanes of AVX-512 for kernels_body.h. The AVX-512 sets include it inside a
// namespace and under a compiler target.
#pragma once

struct V {
  __m512 v;

  static V load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static V load_f16(const std::byte* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static V load_bf16(const std::byte* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  static V all(float x) { return {_mm512_set1_ps(x)}; }
  // Of 16 pairs of bf16, one of each as floats.
  static V first_half(V pairs) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.v), 16))};
  }
  static V second_half(V pairs) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs.v), mask))};
  }
  // + second x second, then + first x first: each set has it in its own way.
  static V add_pair(V sum, uint32_t x, V w);
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
  void store_bf16(uint16_t* p) const {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(u, up), 16)));
  }
  float sum() const {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  float most() const { return _mm512_reduce_max_ps(v); }
  // Whole numbers from -128 to 127. Returns their sum.
  int32_t store_integers(int8_t* p) const {
    const __m512i q = _mm512_cvtps_epi32(v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(q));
    return _mm512_reduce_add_epi32(q);
  }
  static __m512i words_of(const std::byte* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // 16 pairs of bf16: of a the first.
  static V pair_bf16(const std::byte* a, const std::byte* b) {
    const __m512i second = _mm512_slli_epi32(words_of(b), 16);
    return {_mm512_castsi512_ps(_mm512_or_si512(words_of(a), second))};
  }
  static V floats_of(const std::byte* integers) {
    const __m128i eight_bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(integers));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(eight_bits))};
  }
  static V pair_integers(const std::byte* a, const std::byte* b) {
    const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(floats_of(a).v), 16);
    return {_mm512_or_ps(_mm512_castsi512_ps(first), second_half(floats_of(b)).v)};
  }

  // Words `at` bytes into 16 rows, n of each: out is [word][row].
  static void turn(const std::byte* const* rows, size_t at, uint32_t n, uint32_t flip,
                   std::byte* out) {
    const auto mask = static_cast<__mmask16>((1u << n) - 1);
    const __m512i flips = _mm512_set1_epi32(static_cast<int>(flip));
    __m512 columns[4][4];  // of four rows: of each four words, the one at this place
    MC_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      __m512 r[4];
      MC_UNROLL
      for (uint32_t j = 0; j < 4; ++j)
        r[j] = _mm512_castsi512_ps(
            _mm512_xor_si512(_mm512_maskz_loadu_epi32(mask, rows[4 * i + j] + at), flips));
      const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
      const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
      const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
      const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
      columns[i][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
      columns[i][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
      columns[i][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
      columns[i][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    MC_UNROLL
    for (uint32_t c = 0; c < 4; ++c) {
      const __m512 x = _mm512_shuffle_f32x4(columns[0][c], columns[1][c], 0x44);
      const __m512 y = _mm512_shuffle_f32x4(columns[2][c], columns[3][c], 0x44);
      const __m512 z = _mm512_shuffle_f32x4(columns[0][c], columns[1][c], 0xEE);
      const __m512 w = _mm512_shuffle_f32x4(columns[2][c], columns[3][c], 0xEE);
      std::byte* const to = out + size_t{64} * c;
      _mm512_storeu_ps(to, _mm512_shuffle_f32x4(x, y, 0x88));
      _mm512_storeu_ps(to + 4 * 64, _mm512_shuffle_f32x4(x, y, 0xDD));
      if (n <= 8) continue;
      _mm512_storeu_ps(to + 8 * 64, _mm512_shuffle_f32x4(z, w, 0x88));
      _mm512_storeu_ps(to + 12 * 64, _mm512_shuffle_f32x4(z, w, 0xDD));
    }
  }

  static constexpr uint32_t kChains = 16;  // sums that stay in registers together
  // Both halves of a and of b added: of a in the lower half.
  static __m512 eights(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  }
  static __m512 fours(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  }
  static __m512 twos(__m512 a, __m512 b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  // Lane i is v[i].sum(), all in the same tree.
  static V sums(const V (&v)[kLanes]) {
    const __m512 a = twos(fours(eights(v[0].v, v[4].v), eights(v[8].v, v[12].v)),
                          fours(eights(v[1].v, v[5].v), eights(v[9].v, v[13].v)));
    const __m512 b = twos(fours(eights(v[2].v, v[6].v), eights(v[10].v, v[14].v)),
                          fours(eights(v[3].v, v[7].v), eights(v[11].v, v[15].v)));
    return {_mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD))};
  }
};
