// Reads a panel's integers and scales, and rounds rows to integers, over V (kernels_body.h) and a
// type that a file per instruction set defines before it includes this:
//
//   Words  64 bytes: the integers of a step, one of 4 for each of 16 columns
//
// Nothing of the standard library may be instantiated here (kernels_body.h says why).
#pragma once

constexpr float kLeastRounded = 1e-30f;  // a group whose numbers are all smaller is zero

// Of each lane the larger size. NaN has none: greater_of() gives its second operand beside NaN, and
// that is a number each time, so no later maximum depends on the order of lanes.
[[gnu::always_inline]] inline V larger_sizes(V a, V b) {
  const V first = V::greater_of(V::sub(V::zero(), a), V::greater_of(a, V::zero()));
  return V::greater_of(V::sub(V::zero(), b), V::greater_of(b, first));
}

// Rounds a row's group to integers from -127 to 127, the largest to one of these.
[[gnu::always_inline]] inline void round_group_of(const float* x, int8_t* out, float& scale,
                                                  int32_t (&sums)[2]) {
  const V a = V::load(x), b = V::load(x + kLanes);
  const float most = larger_sizes(a, b).most();
  const bool nothing = !(most >= kLeastRounded);
  scale = nothing ? 0 : most / 127.0f;
  const V inverse = V::all(nothing ? 0 : 127.0f / most);
  const auto rounded = [&](V v) {
    return V::lesser_of(V::greater_of(V::round(V::mul(v, inverse)), V::all(-127.0f)),
                        V::all(127.0f));
  };
  sums[0] = rounded(a).store_integers(out);
  sums[1] = rounded(b).store_integers(out + kLanes);
}

// What is taken off a format's integers after its products (BlockFormat::offset).
constexpr uint32_t offset_of(uint32_t bits, bool halves, bool minimum) {
  return minimum ? 0 : bits == 4 ? (halves ? 4 : 8) : 1u << (bits - 1);
}

template <uint32_t kBits, uint32_t kStep>
[[gnu::always_inline]] inline Words words_of(const std::byte* group) {
  if constexpr (kBits == 8) {
    return Words::load(group + 64 * kStep);
  } else {
    const Words both = Words::load(group + 64 * (kStep % 4));
    Words w = kStep < 4 ? both.low() : both.high();
    if constexpr (kBits > 4) w = w.with_bits(group + 256 + 8 * kStep, 16);
    if constexpr (kBits > 5) w = w.with_bits(group + 320 + 8 * kStep, 32);
    return w;
  }
}

[[gnu::always_inline]] inline V scales_at(const std::byte* p, bool f16) {
  return f16 ? V::load_f16(p) : V::load(reinterpret_cast<const float*>(p));
}

// Fetches a group's share of kWide panels into the second cache: panels are so short that the
// processor's own prefetching hardly begins before they end.
template <uint32_t kWide>
[[gnu::always_inline]] inline void fetch_ahead(const std::byte* from, size_t bytes,
                                               size_t panel_bytes) {
  for (size_t at = 0; at < bytes; at += 64) {
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p) __builtin_prefetch(from + p * panel_bytes + at, 0, 2);
  }
}
