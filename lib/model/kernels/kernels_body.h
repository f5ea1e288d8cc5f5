// Implements the loops of kernels.h once, over a type V of 16 floats. A file per instruction set
// defines V and includes this inside a namespace of its own, under that set's compiler target.
// Nothing of the standard library may be instantiated here: the linker might give another file this
// copy, which its CPU cannot run.
#pragma once

constexpr uint32_t kDepth = 128;  // steps at a time: their weights stay in the first-level cache

// What is multiplied: floats; f16 by floats; bf16 by floats; bf16 by bf16.
enum class Feed { kFloats, kHalf, kMixed, kBf16 };

// Columns of a panel that exist.
inline uint32_t width(const PanelJob& job, uint32_t panel) {
  const uint32_t left = job.columns - panel * kLanes;
  return left < kLanes ? left : kLanes;
}

#include "model/kernels/kernels_tails.h"

enum class Start { kZero, kContinue, kAdd };  // from zero; on from y; from zero, then added to y

struct Span {  // steps [begin, end) of a part
  uint32_t segment, begin, end;
};

// The sums of a tile, one step on. `x` is the first row's factor of the step.
template <uint32_t kRows, uint32_t kWide>
[[gnu::always_inline]] inline void add_product(const float* x, size_t stride, const V (&w)[kWide],
                                               V (&sums)[kRows][kWide]) {
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    const V value = V::all(x[r * stride]);
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p) sums[r][p] = V::fma(value, w[p], sums[r][p]);
  }
}

template <uint32_t kRows, uint32_t kWide>
[[gnu::always_inline]] inline void copy_sums(const V (&from)[kRows][kWide], V (&to)[kRows][kWide]) {
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p) to[r][p] = from[r][p];
  }
}

// A function of its own: among the branches of a tile's ends, g++ 12 leaves half of the sums in
// memory.
template <Feed kFeed, uint32_t kRows, uint32_t kWide>
[[gnu::noinline]] void add_steps(const PanelJob& job, size_t row, Span s, V (&tile)[kRows][kWide]) {
  V sums[kRows][kWide];
  copy_sums(tile, sums);
  const uint32_t part = job.part(), steps = job.steps();
  const std::byte* panels = job.panels + size_t{s.segment} * steps * job.step_bytes();
  const size_t first = row / kGroupRows * kGroupRows;  // row of the group
  const size_t in_group =
      kRows == kGroupRows || job.rows - first >= kGroupRows ? kGroupRows : job.rows - first;
  const uint16_t* pairs = nullptr;
  if constexpr (kFeed == Feed::kBf16)
    pairs =
        job.x_bf16 + (first * job.segments + s.segment * in_group) * steps * 2 + (row - first) * 2;
  constexpr size_t kStepBytes = kFeed == Feed::kHalf ? 32 : 64;
  const size_t ahead = row == 0 ? job.ahead : 0;
  for (uint32_t i = s.begin; i < s.end; ++i) {
    V w[kWide];
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p) {
      const std::byte* const panel = panels + p * job.panel_bytes;
      __builtin_prefetch(panel + i * kStepBytes + ahead, 0, 2);
      w[p] = kFeed == Feed::kHalf ? V::load_f16(panel + i * size_t{32})
                                  : V::load(reinterpret_cast<const float*>(panel + i * size_t{64}));
    }
    if constexpr (kFeed == Feed::kFloats || kFeed == Feed::kHalf) {
      add_product(job.x + row * job.x_stride + size_t{s.segment} * part + i, job.x_stride, w, sums);
    } else if constexpr (kFeed == Feed::kMixed) {
      const float* x = job.x + row * job.x_stride + size_t{s.segment} * part + 2 * i;
      V half[kWide];
      if (2 * i + 1 < part) {
        MC_UNROLL
        for (uint32_t p = 0; p < kWide; ++p) half[p] = V::second_half(w[p]);
        add_product(x + 1, job.x_stride, half, sums);
      }
      MC_UNROLL
      for (uint32_t p = 0; p < kWide; ++p) half[p] = V::first_half(w[p]);
      add_product(x, job.x_stride, half, sums);
    } else {
      MC_UNROLL
      for (uint32_t r = 0; r < kRows; ++r) {
        uint32_t pair;
        __builtin_memcpy(&pair, pairs + (i * in_group + r) * 2, sizeof pair);
        MC_UNROLL
        for (uint32_t p = 0; p < kWide; ++p) sums[r][p] = V::add_pair(sums[r][p], pair, w[p]);
      }
    }
  }
  copy_sums(sums, tile);
}

template <Feed kFeed, uint32_t kRows, uint32_t kWide>
void multiply_tile(const PanelJob& job, size_t row, Span span, Start start) {
  V sums[kRows][kWide];
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p)
      sums[r][p] = start == Start::kContinue
                       ? load_some(job.y + (row + r) * job.y_stride + p * kLanes, width(job, p))
                       : V::zero();
  }
  add_steps<kFeed, kRows, kWide>(job, row, span, sums);
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    MC_UNROLL
    for (uint32_t p = 0; p < kWide; ++p) {
      float* y = job.y + (row + r) * job.y_stride + p * kLanes;
      const uint32_t n = width(job, p);
      store_some(start == Start::kAdd ? V::add(load_some(y, n), sums[r][p]) : sums[r][p], y, n);
    }
  }
}

struct RowRange {
  size_t begin, end;
};

template <Feed kFeed, uint32_t kRows, uint32_t kWide>
void multiply_span(const PanelJob& job, RowRange rows, Span span, Start start) {
  for (; rows.begin + kRows <= rows.end; rows.begin += kRows)
    multiply_tile<kFeed, kRows, kWide>(job, rows.begin, span, start);
  if constexpr (kRows > 1) multiply_span<kFeed, kRows / 2, kWide>(job, rows, span, start);
}

template <Feed kFeed, uint32_t kRows, uint32_t kWide>
void multiply_panels(const PanelJob& job, RowRange rows) {
  const uint32_t steps = job.steps();
  for (uint32_t s = 0; s < job.segments; ++s) {
    // Parts after the first are added as a whole, so they are not cut further.
    const uint32_t depth = s == 0 && job.rows > 8 ? kDepth : steps;
    for (uint32_t begin = 0; begin < steps; begin += depth) {
      const uint32_t end = begin + depth < steps ? begin + depth : steps;
      multiply_span<kFeed, kRows, kWide>(job, rows, {s, begin, end},
                                         s > 0        ? Start::kAdd
                                         : begin == 0 ? Start::kZero
                                                      : Start::kContinue);
    }
  }
}

template <Feed kFeed, uint32_t kRows>
void multiply_wide(const PanelJob& job, RowRange rows) {
  if (job.columns > 2 * kLanes)
    multiply_panels<kFeed, kRows, 3>(job, rows);
  else if (job.columns > kLanes)
    multiply_panels<kFeed, kRows, 2>(job, rows);
  else
    multiply_panels<kFeed, kRows, 1>(job, rows);
}

template <Feed kFeed>
void multiply_feed(const PanelJob& job) {
  if constexpr (V::kChains >= 16) {
    multiply_wide<kFeed, 8>(job, {0, job.rows});
  } else {  // fewer registers: four rows by a panel, or two by three
    const size_t fours = job.rows / 4 * 4;
    for (uint32_t first = 0; fours > 0 && first < job.columns; first += kLanes) {
      PanelJob panel = job;
      panel.panels += first / kLanes * job.panel_bytes;
      panel.columns = job.columns - first < kLanes ? job.columns - first : kLanes;
      panel.y += first;
      multiply_panels<kFeed, 4, 1>(panel, {0, fours});
    }
    if (fours < job.rows) multiply_wide<kFeed, 2>(job, {fours, job.rows});
  }
}

void multiply(const PanelJob& job) {
  if (job.type == DType::kF32)
    multiply_feed<Feed::kFloats>(job);
  else if (job.type == DType::kF16)
    multiply_feed<Feed::kHalf>(job);
  else if (job.x_bf16 == nullptr)
    multiply_feed<Feed::kMixed>(job);
  else
    multiply_feed<Feed::kBf16>(job);
}

// Keys and values of a head are a few KiB side by side, and the next head's lie behind them: too
// short for the processor's own prefetching.
constexpr size_t kWidenAhead = 4096;

template <size_t kBytes, class Load>
[[gnu::always_inline]] inline size_t widen_lanes(const std::byte* from, size_t n, float* out,
                                                 Load load) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    __builtin_prefetch(from + kBytes * i + kWidenAhead, 0, 2);
    load(from + kBytes * i).store(out + i);
  }
  return i;
}

struct LoadFloats {
  [[gnu::always_inline]] V operator()(const std::byte* p) const {
    return V::load(reinterpret_cast<const float*>(p));
  }
};
struct LoadF16 {
  [[gnu::always_inline]] V operator()(const std::byte* p) const { return V::load_f16(p); }
};
struct LoadBf16 {
  [[gnu::always_inline]] V operator()(const std::byte* p) const { return V::load_bf16(p); }
};

void widen(DType type, const std::byte* from, size_t n, float* out) {
  const size_t done = type == DType::kF32   ? widen_lanes<4>(from, n, out, LoadFloats())
                      : type == DType::kF16 ? widen_lanes<2>(from, n, out, LoadF16())
                                            : widen_lanes<2>(from, n, out, LoadBf16());
  to_floats(type, from + done * size_of(type), out + done, n - done);
}

void round(const float* x, size_t n, uint16_t* out) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) V::load(x + i).store_bf16(out + i);
  if (i == n) return;
  const auto rest = static_cast<uint32_t>(n - i);
  uint16_t lanes[kLanes];
  load_some(x + i, rest).store_bf16(lanes);
  for (uint32_t j = 0; j < rest; ++j) out[i + j] = lanes[j];
}

// e^x for x <= 88; below -87 it is as for -87.
[[gnu::always_inline]] inline V exponential(V x) {
  x = V::greater_of(x, V::all(-87.0f));
  const V n = V::round(V::mul(x, V::all(1.44269504088896341f)));
  V r = V::fma(n, V::all(-0.693359375f), x);
  r = V::fma(n, V::all(2.12194440e-4f), r);
  V p = V::all(1.9875691500e-4f);
  p = V::fma(p, r, V::all(1.3981999507e-3f));
  p = V::fma(p, r, V::all(8.3334519073e-3f));
  p = V::fma(p, r, V::all(4.1665795894e-2f));
  p = V::fma(p, r, V::all(1.6666665459e-1f));
  p = V::fma(p, r, V::all(5.0000001201e-1f));
  p = V::fma(V::mul(r, r), p, V::add(r, V::all(1.0f)));
  return V::scale(p, n);
}

void normalize(const float* x, const float* w, size_t n, double eps, float* out) {
  V squares = V::zero();
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) squares = V::fma(V::load(x + i), V::load(x + i), squares);
  const auto rest = static_cast<uint32_t>(n - i);
  if (rest > 0) {
    const V tail = load_some(x + i, rest);
    squares = V::fma(tail, tail, squares);
  }
  const double mean = static_cast<double>(squares.sum()) / static_cast<double>(n);
  const V scale = V::all(static_cast<float>(1.0 / __builtin_sqrt(mean + eps)));
  for (i = 0; i + kLanes <= n; i += kLanes)
    V::mul(V::mul(V::load(x + i), scale), V::load(w + i)).store(out + i);
  if (rest > 0)
    store_some(V::mul(V::mul(load_some(x + i, rest), scale), load_some(w + i, rest)), out + i,
               rest);
}

// Applies f to n floats, 16 at a time: out[i] = f(a[i], b[i]).
template <class F>
[[gnu::always_inline]] inline void each_of(const float* a, const float* b, size_t n, float* out,
                                           F f) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(V::load(a + i), V::load(b + i)).store(out + i);
  const auto rest = static_cast<uint32_t>(n - i);
  if (rest > 0) store_some(f(load_some(a + i, rest), load_some(b + i, rest)), out + i, rest);
}

// x / (1 + e^-t)
[[gnu::always_inline]] inline V times_sigmoid(V x, V t) {
  t = V::lesser_of(V::all(80.0f), V::greater_of(V::all(-80.0f), t));
  return V::div(x, V::add(V::all(1.0f), exponential(V::sub(V::zero(), t))));
}

struct SiluTimes {
  [[gnu::always_inline]] V operator()(V g, V up) const { return V::mul(times_sigmoid(g, g), up); }
};

// GELU by tanh: x (1 + tanh(u)) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTimes {
  [[gnu::always_inline]] V operator()(V g, V up) const {
    const V slope = V::fma(V::mul(g, g), V::all(0.0713548162726f), V::all(1.59576912160573f));
    return V::mul(times_sigmoid(g, V::mul(g, slope)), up);
  }
};

void gate(const float* g, const float* up, size_t n, Activation activation, float* out) {
  if (activation == Activation::kSilu)
    each_of(g, up, n, out, SiluTimes());
  else
    each_of(g, up, n, out, GeluTimes());
}

// cap x tanh(x / cap), as 1 - 2 / (1 + e^2t).
[[gnu::always_inline]] inline V capped(V x, V cap) {
  const V t = V::div(V::add(x, x), cap);
  const V e = exponential(V::lesser_of(V::all(40.0f), V::greater_of(V::all(-40.0f), t)));
  return V::mul(cap, V::sub(V::all(1.0f), V::div(V::all(2.0f), V::add(V::all(1.0f), e))));
}

struct Cap {
  float cap;
  [[gnu::always_inline]] V operator()(V x, V) const { return capped(x, V::all(cap)); }
};
struct Exponential {
  [[gnu::always_inline]] V operator()(V x, V) const { return exponential(x); }
};

void soft_cap(float* x, size_t n, float cap) { each_of(x, x, n, x, Cap{cap}); }
void exponentials(float* x, size_t n) { each_of(x, x, n, x, Exponential()); }

#include "model/kernels/attention_body.h"
