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
  __m512i rounded() const {  // bf16 in the upper halves
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  }
  void store_bf16(uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(), 16)));
  }
  // The same for normal numbers, each set in its own way. Returns what was stored.
  V store_share(uint16_t* p) const;
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
  // 32 pairs of bf16: of a the first.
  static void pair_bf16(const std::byte* a, const std::byte* b, std::byte* out) {
    const __m512i first = _mm512_loadu_si512(a), second = _mm512_loadu_si512(b);
    const __m512i low = _mm512_setr_epi32(
        0x200000, 0x210001, 0x220002, 0x230003, 0x240004, 0x250005, 0x260006, 0x270007, 0x280008,
        0x290009, 0x2A000A, 0x2B000B, 0x2C000C, 0x2D000D, 0x2E000E, 0x2F000F);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(0x100010));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi16(first, low, second));
    _mm512_storeu_si512(out + 64, _mm512_permutex2var_epi16(first, high, second));
  }
  static V floats_of(const std::byte* integers) {
    const __m128i eight_bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(integers));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(eight_bits))};
  }
  static V pair_integers(const std::byte* a, const std::byte* b) {
    const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(floats_of(a).v), 16);
    return {_mm512_or_ps(_mm512_castsi512_ps(first), second_half(floats_of(b)).v)};
  }

  // Four words of rows j, 4 + j, 8 + j and 12 + j. Loads put them in their places, for shuffles are
  // scarcer.
  static __m512i four_words(const std::byte* const* rows, size_t at, __m512i flips) {
    const auto* const a = reinterpret_cast<const __m128i*>(rows[0] + at);
    const auto* const b = reinterpret_cast<const __m128i*>(rows[4] + at);
    const auto* const c = reinterpret_cast<const __m128i*>(rows[8] + at);
    const auto* const d = reinterpret_cast<const __m128i*>(rows[12] + at);
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128(a));
    x = _mm512_mask_broadcast_i32x4(x, 0x00F0, _mm_loadu_si128(b));
    x = _mm512_mask_broadcast_i32x4(x, 0x0F00, _mm_loadu_si128(c));
    x = _mm512_mask_broadcast_i32x4(x, 0xF000, _mm_loadu_si128(d));
    return _mm512_xor_si512(x, flips);
  }
  // Words `at` bytes into 16 rows, n of each, n a multiple of 4: out is [word][row].
  static void turn(const std::byte* const* rows, size_t at, uint32_t n, uint32_t flip,
                   std::byte* out) {
    const __m512i flips = _mm512_set1_epi32(static_cast<int>(flip));
    for (uint32_t word = 0; word < n; word += 4, at += 16, out += 4 * 64) {
      const __m512i a = four_words(rows, at, flips), b = four_words(rows + 1, at, flips);
      const __m512i c = four_words(rows + 2, at, flips), d = four_words(rows + 3, at, flips);
      const __m512i p = _mm512_unpacklo_epi32(a, b), q = _mm512_unpackhi_epi32(a, b);
      const __m512i s = _mm512_unpacklo_epi32(c, d), t = _mm512_unpackhi_epi32(c, d);
      _mm512_storeu_si512(out, _mm512_unpacklo_epi64(p, s));
      _mm512_storeu_si512(out + 64, _mm512_unpackhi_epi64(p, s));
      _mm512_storeu_si512(out + 128, _mm512_unpacklo_epi64(q, t));
      _mm512_storeu_si512(out + 192, _mm512_unpackhi_epi64(q, t));
    }
  }

  static constexpr uint32_t kChains = 16;  // sums that stay in registers together
  struct Sum {
    static __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  };
  struct Most {
    static __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  };
  // Both halves of a and of b added, or whatever else Two does: of a in the lower half.
  template <class Two>
  static __m512 eights(__m512 a, __m512 b) {
    return Two::of(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  }
  template <class Two>
  static __m512 fours(__m512 a, __m512 b) {
    return Two::of(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  }
  template <class Two>
  static __m512 twos(__m512 a, __m512 b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return Two::of(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                   _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  template <class Two>
  static __m512 eight_vectors(const V* v) {  // 0, 1, 4, 5 and so on
    return twos<Two>(fours<Two>(eights<Two>(v[0].v, v[4].v), eights<Two>(v[8].v, v[12].v)),
                     fours<Two>(eights<Two>(v[1].v, v[5].v), eights<Two>(v[9].v, v[13].v)));
  }
  template <class Two>
  static V across(const V (&v)[kLanes]) {
    const __m512 a = eight_vectors<Two>(v), b = eight_vectors<Two>(v + 2);
    return {Two::of(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD))};
  }
  // Lane i is v[i].sum(), all in the same tree; or v[i].most().
  static V sums(const V (&v)[kLanes]) { return across<Sum>(v); }
  static V mosts(const V (&v)[kLanes]) { return across<Most>(v); }
};
