// 16 lanes in plain C++, for CPUs without AVX2, and as the reference for the other sets.
#include <bit>

#include "model/kernels/kernel_dispatch.h"

#define MC_UNROLL  // no registers to keep anything in

namespace mc::model::plain {
namespace {

struct V {
  float f[kLanes];

  static V load(const float* p) {
    V v;
    for (uint32_t i = 0; i < kLanes; ++i) v.f[i] = p[i];
    return v;
  }
  static V load_f16(const std::byte* p) {
    V v;
    to_floats(DType::kF16, p, v.f, kLanes);
    return v;
  }
  static V load_bf16(const std::byte* p) {
    V v;
    to_floats(DType::kBf16, p, v.f, kLanes);
    return v;
  }
  template <class F>
  static V each(F f) {
    V v;
    for (uint32_t i = 0; i < kLanes; ++i) v.f[i] = f(i);
    return v;
  }
  static V all(float x) {
    return each([&](uint32_t) { return x; });
  }
  static V bits(V a, uint32_t shift, uint32_t mask) {
    return each([&](uint32_t i) {
      return std::bit_cast<float>((std::bit_cast<uint32_t>(a.f[i]) << shift) & mask);
    });
  }
  // Of 16 pairs of bf16, one of each as floats.
  static V first_half(V pairs) { return bits(pairs, 16, ~0u); }
  static V second_half(V pairs) { return bits(pairs, 0, 0xFFFF0000u); }
  // + second x second, then + first x first.
  static V add_pair(V sum, uint32_t x, V w) {
    sum = fma(all(std::bit_cast<float>(x & 0xFFFF0000u)), second_half(w), sum);
    return fma(all(std::bit_cast<float>(x << 16)), first_half(w), sum);
  }
  static V zero() { return all(0); }
  static V fma(V a, V b, V c) {
    return each([&](uint32_t i) { return __builtin_fmaf(a.f[i], b.f[i], c.f[i]); });
  }
  static V add(V a, V b) {
    return each([&](uint32_t i) { return a.f[i] + b.f[i]; });
  }
  static V sub(V a, V b) {
    return each([&](uint32_t i) { return a.f[i] - b.f[i]; });
  }
  static V mul(V a, V b) {
    return each([&](uint32_t i) { return a.f[i] * b.f[i]; });
  }
  static V div(V a, V b) {
    return each([&](uint32_t i) { return a.f[i] / b.f[i]; });
  }
  static V greater_of(V a, V b) {
    return each([&](uint32_t i) { return a.f[i] > b.f[i] ? a.f[i] : b.f[i]; });
  }
  static V lesser_of(V a, V b) {
    return each([&](uint32_t i) { return a.f[i] < b.f[i] ? a.f[i] : b.f[i]; });
  }
  static V round(V a) {
    return each([&](uint32_t i) { return __builtin_rintf(a.f[i]); });
  }
  static V scale(V a, V n) {  // a x 2^n
    return each([&](uint32_t i) { return __builtin_ldexpf(a.f[i], static_cast<int>(n.f[i])); });
  }
  void store(float* p) const {
    for (uint32_t i = 0; i < kLanes; ++i) p[i] = f[i];
  }
  void store_bf16(uint16_t* p) const {
    for (uint32_t i = 0; i < kLanes; ++i) {
      const auto u = std::bit_cast<uint32_t>(f[i]);
      p[i] = static_cast<uint16_t>((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
    }
  }
  V store_share(uint16_t* p) const {  // returns what was stored
    store_bf16(p);
    return load_bf16(reinterpret_cast<const std::byte*>(p));
  }
  float sum() const {
    float s[kLanes];
    store(s);
    for (uint32_t half = kLanes / 2; half > 0; half /= 2)
      for (uint32_t i = 0; i < half; ++i) s[i] += s[i + half];
    return s[0];
  }
  float most() const {
    float most = f[0];
    for (uint32_t i = 1; i < kLanes; ++i) most = f[i] > most ? f[i] : most;
    return most;
  }
  // Whole numbers from -128 to 127. Returns their sum.
  int32_t store_integers(int8_t* p) const {
    int32_t sum = 0;
    for (uint32_t i = 0; i < kLanes; ++i) {
      const auto q = static_cast<int32_t>(f[i]);
      p[i] = static_cast<int8_t>(q);
      sum += q;
    }
    return sum;
  }
  // 32 pairs of bf16: of a the first.
  static void pair_bf16(const std::byte* a, const std::byte* b, std::byte* out) {
    for (uint32_t i = 0; i < 2 * kLanes; ++i, a += 2, b += 2, out += 4) {
      __builtin_memcpy(out, a, 2);
      __builtin_memcpy(out + 2, b, 2);
    }
  }
  static V pair_integers(const std::byte* a, const std::byte* b) {
    const auto bits = [](const std::byte* p) {
      return std::bit_cast<uint32_t>(static_cast<float>(std::to_integer<int8_t>(*p)));
    };
    return each([&](uint32_t i) { return std::bit_cast<float>(bits(a + i) >> 16 | bits(b + i)); });
  }
  // Words `at` bytes into 16 rows, n of each: out is [word][row].
  static void turn(const std::byte* const* rows, size_t at, uint32_t n, uint32_t flip,
                   std::byte* out) {
    for (uint32_t i = 0; i < n; ++i)
      for (uint32_t row = 0; row < kLanes; ++row, out += 4) {
        uint32_t word;
        __builtin_memcpy(&word, rows[row] + at + size_t{4} * i, sizeof word);
        word ^= flip;
        __builtin_memcpy(out, &word, sizeof word);
      }
  }
  static constexpr uint32_t kChains = 1;
  static V sums(const V (&v)[kLanes]) {
    return each([&](uint32_t i) { return v[i].sum(); });
  }
  static V mosts(const V (&v)[kLanes]) {
    return each([&](uint32_t i) { return v[i].most(); });
  }
};

#include "model/kernels/kernels_body.h"

struct Words {
  uint8_t bytes[4 * kLanes];

  template <class F>
  static Words each(F f) {
    Words w;
    for (uint32_t i = 0; i < 4 * kLanes; ++i) w.bytes[i] = static_cast<uint8_t>(f(i));
    return w;
  }
  static Words load(const std::byte* p) {
    return each([&](uint32_t i) { return std::to_integer<uint32_t>(p[i]); });
  }
  Words low() const {
    return each([&](uint32_t i) { return bytes[i] & 15; });
  }
  Words high() const {
    return each([&](uint32_t i) { return bytes[i] >> 4; });
  }
  Words with_bits(const std::byte* bits, uint32_t value) const {
    return each([&](uint32_t i) {
      const bool set = (std::to_integer<uint32_t>(bits[i / 8]) >> (i % 8) & 1) != 0;
      return bytes[i] + (set ? value : 0);
    });
  }
};

template <uint32_t kBits>
struct Dots {
  static constexpr uint32_t kRows = 8;  // that stay in registers together
  int32_t sums[kLanes];

  template <uint32_t kOffset>
  void start(int32_t minus_sum) {
    for (int32_t& sum : sums) sum = static_cast<int32_t>(kOffset) * minus_sum;
  }
  template <uint32_t kStep>
  void add(const Words& w, int32_t four) {
    int8_t x[4];
    __builtin_memcpy(x, &four, sizeof x);
    for (uint32_t lane = 0; lane < kLanes; ++lane)
      for (uint32_t i = 0; i < 4; ++i) sums[lane] += w.bytes[lane * 4 + i] * x[i];
  }
  V floats() const {
    return V::each([&](uint32_t i) { return static_cast<float>(sums[i]); });
  }
};

#include "model/kernels/block_kernels_body.h"

}  // namespace

const BlockKernels kBlockKernels{round_rows, multiply_blocks, 8};
const Kernels kKernels{"plain",   multiply, widen,        round,           normalize,
                       gate,      attend,   score_pairs,  add_pair_values, turn_words,
                       pair_rows, soft_cap, exponentials, &kBlockKernels,  kQueries};

}  // namespace mc::model::plain
