#if defined(__x86_64__)
#include "model/kernels/kernels_x86.h"

MC_TARGET_BEGIN("avx2,fma,f16c")

namespace mc::model::avx2 {
namespace {

// Eight words of eight rows: out is [word][16 rows].
inline void turn_eight(const std::byte* const* rows, size_t at, uint32_t flip, std::byte* out) {
  const __m256i flips = _mm256_set1_epi32(static_cast<int>(flip));
  __m256 columns[2][4];  // of four rows: of each four words, the one at this place
  for (uint32_t i = 0; i < 2; ++i) {
    __m256 r[4];
    for (uint32_t j = 0; j < 4; ++j)
      r[j] = _mm256_castsi256_ps(_mm256_xor_si256(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[4 * i + j] + at)), flips));
    const __m256d p = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
    const __m256d q = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
    const __m256d s = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
    const __m256d t = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
    columns[i][0] = _mm256_castpd_ps(_mm256_unpacklo_pd(p, s));
    columns[i][1] = _mm256_castpd_ps(_mm256_unpackhi_pd(p, s));
    columns[i][2] = _mm256_castpd_ps(_mm256_unpacklo_pd(q, t));
    columns[i][3] = _mm256_castpd_ps(_mm256_unpackhi_pd(q, t));
  }
  for (uint32_t c = 0; c < 4; ++c) {
    auto* const to = reinterpret_cast<float*>(out + size_t{64} * c);
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(columns[0][c], columns[1][c], 0x20));
    _mm256_storeu_ps(to + 4 * kLanes, _mm256_permute2f128_ps(columns[0][c], columns[1][c], 0x31));
  }
}

inline __m256 half_scale(__m256 x, __m256 n) {  // both factors are normal numbers
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i other = _mm256_sub_epi32(whole, half);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(other, bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}
inline __m256i eight_rounded(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
  return _mm256_srli_epi32(_mm256_add_epi32(u, up), 16);
}

struct V {
  __m256 a, b;  // lanes 0 to 7, 8 to 15

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
  static __m256 eight_f16(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static V load_f16(const std::byte* p) { return {eight_f16(p), eight_f16(p + 16)}; }
  static __m256 eight_bf16(const std::byte* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static V load_bf16(const std::byte* p) { return {eight_bf16(p), eight_bf16(p + 16)}; }
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
  void store_bf16(uint16_t* p) const {
    const __m256i mixed = _mm256_packus_epi32(eight_rounded(a), eight_rounded(b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_permute4x64_epi64(mixed, 0b11'01'10'00));
  }
  V store_share(uint16_t* p) const {  // returns what was stored
    store_bf16(p);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(eight_rounded(a), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(eight_rounded(b), 16))};
  }
  __m256 eight() const { return _mm256_add_ps(a, b); }
  float sum() const {
    const __m128 four =
        _mm_add_ps(_mm256_castps256_ps128(eight()), _mm256_extractf128_ps(eight(), 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  float most() const {
    const __m256 eight = _mm256_max_ps(a, b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  // Whole numbers from -128 to 127. Returns their sum.
  int32_t store_integers(int8_t* p) const {
    const __m256i x = _mm256_cvtps_epi32(a), y = _mm256_cvtps_epi32(b);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x, y), 0b11'01'10'00);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    const __m256i eight = _mm256_add_epi32(x, y);
    const __m128i four =
        _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
  }
  static __m256 eight_pairs(__m256 first, __m256 second) {  // of bf16 as floats
    return _mm256_or_ps(_mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256(first), 16)),
                        second);
  }
  // 32 pairs of bf16: of x the first.
  static void pair_bf16(const std::byte* x, const std::byte* y, std::byte* out) {
    for (uint32_t i = 0; i < 2; ++i, x += 32, y += 32, out += 64) {
      const V first = load_bf16(x), second = load_bf16(y);
      V{eight_pairs(first.a, second.a), eight_pairs(first.b, second.b)}.store(
          reinterpret_cast<float*>(out));
    }
  }
  static __m256 eight_floats(const std::byte* integers) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(integers));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
  static V pair_integers(const std::byte* x, const std::byte* y) {
    return {eight_pairs(eight_floats(x), eight_seconds(eight_floats(y))),
            eight_pairs(eight_floats(x + 8), eight_seconds(eight_floats(y + 8)))};
  }

  // Words `at` bytes into 16 rows, n of each: out is [word][row].
  static void turn(const std::byte* const* rows, size_t at, uint32_t n, uint32_t flip,
                   std::byte* out) {
    for (uint32_t word = 0; word < n; word += 8)
      for (uint32_t row = 0; row < kLanes; row += 8)
        turn_eight(rows + row, at + size_t{word} * 4, flip, out + size_t{word} * 64 + row * 4);
  }

  static constexpr uint32_t kChains = 4;  // sums that stay in registers together
  struct Sum {
    static __m256 of(__m256 x, __m256 y) { return _mm256_add_ps(x, y); }
  };
  struct Most {
    static __m256 of(__m256 x, __m256 y) { return _mm256_max_ps(x, y); }
  };
  template <class Two>
  static __m256 fours(const V& v, const V& w) {
    const __m256 x = Two::of(v.a, v.b), y = Two::of(w.a, w.b);
    return Two::of(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  }
  template <class Two>
  static __m256 twos(__m256 x, __m256 y) {
    const __m256d p = _mm256_castps_pd(x), q = _mm256_castps_pd(y);
    return Two::of(_mm256_castpd_ps(_mm256_unpacklo_pd(p, q)),
                   _mm256_castpd_ps(_mm256_unpackhi_pd(p, q)));
  }
  template <class Two>
  static __m256 eight_vectors(const V* v) {
    const __m256 x = twos<Two>(fours<Two>(v[0], v[4]), fours<Two>(v[1], v[5]));
    const __m256 y = twos<Two>(fours<Two>(v[2], v[6]), fours<Two>(v[3], v[7]));
    return Two::of(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xDD));
  }
  // Lane i is v[i].sum(), all in the same tree; or v[i].most().
  static V sums(const V (&v)[kLanes]) { return {eight_vectors<Sum>(v), eight_vectors<Sum>(v + 8)}; }
  static V mosts(const V (&v)[kLanes]) {
    return {eight_vectors<Most>(v), eight_vectors<Most>(v + 8)};
  }
};

#include "model/kernels/kernels_body.h"

struct Words {
  __m256i a, b;  // columns 0 to 7, 8 to 15

  static Words load(const std::byte* p) {
    const auto* const halves = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
  }
  static __m256i nibbles(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  Words low() const { return {nibbles(a), nibbles(b)}; }
  Words high() const {
    return {nibbles(_mm256_srli_epi16(a, 4)), nibbles(_mm256_srli_epi16(b, 4))};
  }
  // `value` in the bytes whose bit of 32 is set.
  static __m256i spread(const std::byte* bits, char value) {
    int32_t all;
    __builtin_memcpy(&all, bits, sizeof all);
    const __m256i each = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101,
                                            0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
    const __m256i found = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(all), each), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(found, bit), _mm256_set1_epi8(value));
  }
  Words with_bits(const std::byte* bits, char value) const {
    return {_mm256_or_si256(a, spread(bits, value)), _mm256_or_si256(b, spread(bits + 4, value))};
  }
};

// Products are added in pairs to 16 bits, and to 32 bits before they could overflow: after kRun
// steps, for a pair is at most 2 x 127 times the largest integer. A group has eight steps.
template <uint32_t kBits>
struct Dots {
  static constexpr uint32_t kRows = kBits == 4 ? 4 : 2;  // that stay in registers together
  static constexpr uint32_t kRun = kBits == 4 ? 8 : kBits == 5 ? 4 : 2;
  __m256i a, b, pairs_a, pairs_b;

  template <uint32_t kOffset>
  void start(int32_t minus_sum) {
    pairs_a = pairs_b = _mm256_setzero_si256();
    a = b = kOffset == 0
                ? pairs_a
                : _mm256_slli_epi32(_mm256_set1_epi32(minus_sum), __builtin_ctz(kOffset | 256));
  }
  template <uint32_t kStep>
  void add(Words w, int32_t x) {
    const __m256i four = _mm256_set1_epi32(x);
    pairs_a = _mm256_add_epi16(pairs_a, _mm256_maddubs_epi16(w.a, four));
    pairs_b = _mm256_add_epi16(pairs_b, _mm256_maddubs_epi16(w.b, four));
    if constexpr (kRun < 8 && (kStep + 1) % kRun == 0) {
      a = with_pairs(a, pairs_a);
      b = with_pairs(b, pairs_b);
      pairs_a = pairs_b = _mm256_setzero_si256();
    }
  }
  static __m256i with_pairs(__m256i sum, __m256i pairs) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  V floats() const {
    if constexpr (kRun < 8) return {_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)};
    return {_mm256_cvtepi32_ps(with_pairs(a, pairs_a)), _mm256_cvtepi32_ps(with_pairs(b, pairs_b))};
  }
};

// Integers of 8 bits are taken without their offset of 128, for 255 x 127 x 2 is over 16 bits:
// their sign goes to the other factor.
template <>
struct Dots<8> {
  static constexpr uint32_t kRows = 4;
  __m256i a, b;

  template <uint32_t kOffset>
  void start(int32_t) {
    a = b = _mm256_setzero_si256();
  }
  static __m256i four_products(__m256i w, __m256i x) {
    const __m256i whole = _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80)));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(whole), _mm256_sign_epi8(x, whole));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  template <uint32_t kStep>
  void add(Words w, int32_t x) {
    const __m256i four = _mm256_set1_epi32(x);
    a = _mm256_add_epi32(a, four_products(w.a, four));
    b = _mm256_add_epi32(b, four_products(w.b, four));
  }
  V floats() const { return {_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)}; }
};

#include "model/kernels/block_kernels_body.h"

}  // namespace

const BlockKernels kBlockKernels{round_rows, multiply_blocks, 8};
const Kernels kKernels{"avx2",    multiply, widen,        round,           normalize,
                       gate,      attend,   score_pairs,  add_pair_values, turn_words,
                       pair_rows, soft_cap, exponentials, &kBlockKernels,  kQueries};

}  // namespace mc::model::avx2

MC_TARGET_END
#endif
