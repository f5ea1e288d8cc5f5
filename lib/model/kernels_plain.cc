// 16 lanes in plain C++: for CPUs without more, and to check the others against.
#include <cstring>

#include "model/kernels_sets.h"

namespace mc::model::plain {
namespace {

struct V {
  float f[kLanes];

  static V load(const float* p) {
    V v;
    for (uint32_t i = 0; i < kLanes; ++i) v.f[i] = p[i];
    return v;
  }
  static V load_bf16(const std::byte* p) {
    V v;
    for (uint32_t i = 0; i < kLanes; ++i) {
      uint16_t bits;
      std::memcpy(&bits, p + 2 * i, 2);
      v.f[i] = from_bf16(bits);
    }
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
  float sum() const {
    float s[kLanes];
    store(s);
    for (uint32_t half = kLanes / 2; half > 0; half /= 2)
      for (uint32_t i = 0; i < half; ++i) s[i] += s[i + half];
    return s[0];
  }
};

#include "model/kernels_body.h"

}  // namespace

const Kernels kKernels{"plain", multiply, normalize, gate, attend};

}  // namespace mc::model::plain
