// 16 lanes in plain C++, for CPUs without AVX2, and as the reference for the other sets.
#include <bit>

#include "model/kernels/kernel_dispatch.h"

namespace mc::model::plain {
namespace {

struct V {
  float f[kLanes];

  static V load(const float* p) {
    V v;
    for (uint32_t i = 0; i < kLanes; ++i) v.f[i] = p[i];
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
  float sum() const {
    float s[kLanes];
    store(s);
    for (uint32_t half = kLanes / 2; half > 0; half /= 2)
      for (uint32_t i = 0; i < half; ++i) s[i] += s[i + half];
    return s[0];
  }
};

#include "model/kernels/kernels_body.h"

}  // namespace

const Kernels kKernels{"plain", multiply, round, normalize, gate, attend, soft_cap, exponentials};

}  // namespace mc::model::plain
