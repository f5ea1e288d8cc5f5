// Kernels on rows of activations: embedding, normalization, gate.
#include "device/kernels/group_sums.h"

namespace {

template <class T>
MC_DEVICE void embed(const T* table, const mc_row* rows, float* x, uint32_t hidden) {
  const uint64_t row = blockIdx.x;
  const T* const from = table + static_cast<uint64_t>(rows[row].token) * hidden;
  MC_EACH(t) {
    for (uint32_t i = t; i < hidden; i += MC_KERNEL_THREADS)
      x[row * hidden + i] = to_float(from[i]);
  }
}

// In the CPU's order: few threads sum.
MC_DEVICE void normalize(const float* x, const float* weight, F32* out, uint32_t n, double eps) {
  constexpr uint32_t kPart = 2048;  // a multiple of kLanes
  MC_SHARED float part[kPart];
  MC_SHARED float lanes[kLanes];
  MC_SHARED float scale;
  x += static_cast<uint64_t>(blockIdx.x) * n;
  out += static_cast<uint64_t>(blockIdx.x) * n;
  MC_EACH(t) {
    if (t < kLanes) lanes[t] = 0;
  }
  for (uint32_t begin = 0; begin < n; begin += kPart) {
    const uint32_t here = least(kPart, n - begin);
    barrier();
    MC_EACH(t) {
      for (uint32_t i = t; i < here; i += MC_KERNEL_THREADS) part[i] = x[begin + i];
    }
    barrier();
    MC_EACH(t) {
      if (t < kLanes) {
        float sum = lanes[t];
        for (uint32_t i = t; i < here; i += kLanes) sum = fmaf(part[i], part[i], sum);
        lanes[t] = sum;
      }
    }
  }
  barrier();
  MC_EACH(t) {
    if (t == 0) {
      const double mean = static_cast<double>(tree_sum(lanes)) / static_cast<double>(n);
      scale = static_cast<float>(1.0 / sqrt(mean + eps));
    }
  }
  barrier();
  MC_EACH(t) {
    for (uint32_t i = t; i < n; i += MC_KERNEL_THREADS)
      from_float(x[i] * scale * weight[i], out[i]);
  }
}

// Numbers [i, i + 4) of n, zeros where there are none; `aligned`: any four are.
MC_DEVICE Four four_of(const float* x, uint32_t i, uint32_t n, bool aligned) {
  if (aligned && i < n) return load_four(x + i);
  Four some = {};
  MC_UNROLL
  for (uint32_t e = 0; e < 4; ++e)
    if (i < n && n - i > e) some.of[e] = x[i + e];
  return some;
}

MC_DEVICE void add_squares(Four x, Four& sum) {
  MC_UNROLL
  for (uint32_t e = 0; e < 4; ++e) sum.of[e] = fmaf(x.of[e], x.of[e], sum.of[e]);
}

template <class T>
MC_DEVICE void scale_four(Four x, Four weight, float scale, T* out, uint32_t i, uint32_t n,
                          bool aligned) {
  FourHalves rounded;
  MC_UNROLL
  for (uint32_t e = 0; e < 4; ++e) {
    T one;
    from_float(x.of[e] * scale * weight.of[e], one);
    rounded.of[e] = one.bits;
  }
  if (aligned && i < n) {
    store_four(out + i, rounded);
    return;
  }
  MC_UNROLL
  for (uint32_t e = 0; e < 4; ++e)
    if (i < n && n - i > e) out[i + e].bits = rounded.of[e];
}

// For outputs of 16 bits. Thread t sums numbers 4t to 4t + 3 of every 4 x MC_KERNEL_THREADS, each
// by itself; whatever the address, so that a row has the same bits wherever it lies. The first
// kHeld fours of a thread, and their weights, are read once, all on their way at a time.
template <class T>
MC_DEVICE void normalize(const float* x, const float* weight, T* out, uint32_t n, double eps) {
  constexpr uint32_t kHeld = 8, kStride = 4 * MC_KERNEL_THREADS;
  MC_SHARED float parts[MC_KERNEL_THREADS / kWarp];
  Own<Four, kHeld> held, weights;
  Own<float, 1> sums;
  x += static_cast<uint64_t>(blockIdx.x) * n;
  out += static_cast<uint64_t>(blockIdx.x) * n;
  const bool aligned = n % 4 == 0 && aligned_to(x, 16) && aligned_to(weight, 16) &&
                       aligned_to(out, sizeof(FourHalves));
  MC_EACH(t) {
    Four sum = {};
    MC_UNROLL
    for (uint32_t h = 0; h < kHeld; ++h)
      held.of(t)[h] = four_of(x, 4 * t + h * kStride, n, aligned);
    MC_UNROLL
    for (uint32_t h = 0; h < kHeld; ++h)
      weights.of(t)[h] = four_of(weight, 4 * t + h * kStride, n, aligned);
    MC_UNROLL
    for (uint32_t h = 0; h < kHeld; ++h) add_squares(held.of(t)[h], sum);
    for (uint32_t i = 4 * t + kHeld * kStride; i < n; i += kStride)
      add_squares(four_of(x, i, n, aligned), sum);
    sums.of(t)[0] = (sum.of[0] + sum.of[1]) + (sum.of[2] + sum.of[3]);
  }
  const float mean = fold(sums, parts, Add()) / static_cast<float>(n);
  const float scale = 1.0f / sqrtf(mean + static_cast<float>(eps));
  MC_EACH(t) {
    MC_UNROLL
    for (uint32_t h = 0; h < kHeld; ++h)
      scale_four(held.of(t)[h], weights.of(t)[h], scale, out, 4 * t + h * kStride, n, aligned);
    for (uint32_t i = 4 * t + kHeld * kStride; i < n; i += kStride)
      scale_four(four_of(x, i, n, aligned), four_of(weight, i, n, aligned), scale, out, i, n,
                 aligned);
  }
}

template <class T>
MC_DEVICE void gate(const float* gate_up, T* out, uint32_t n) {
  const uint64_t row = blockIdx.x;
  const float* const gates = gate_up + row * 2 * n;
  const uint32_t begin = blockIdx.y * MC_GATE_PART, end = least(n, begin + MC_GATE_PART);
  MC_EACH(t) {
    for (uint32_t i = begin + t; i < end; i += MC_KERNEL_THREADS) {
      const float g = gates[i], low = -80.0f > g ? -80.0f : g;
      const float e = exponential(0.0f - (80.0f < low ? 80.0f : low));
      from_float(g / (1.0f + e) * gates[n + i], out[row * n + i]);
    }
  }
}

}  // namespace

#define MC_MAKE(name, T)                                                                     \
  MC_GLOBAL mc_embed_##name(const T* table, const mc_row* rows, float* x, uint32_t hidden) { \
    embed(table, rows, x, hidden);                                                           \
  }                                                                                          \
  MC_GLOBAL mc_normalize_##name(const float* x, const float* weight, T* out, uint32_t n,     \
                                double eps) {                                                \
    normalize(x, weight, out, n, eps);                                                       \
  }                                                                                          \
  MC_GLOBAL mc_gate_##name(const float* gate_up, T* out, uint32_t n) { gate(gate_up, out, n); }
MC_FOR_FORMATS(MC_MAKE)
#undef MC_MAKE
