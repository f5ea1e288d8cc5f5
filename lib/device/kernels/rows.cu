// Kernels on rows of activations: embedding, normalization, gate.
#include "device/kernels/group.h"

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

template <class T>
MC_DEVICE void normalize(const float* x, const float* weight, T* out, uint32_t n, double eps) {
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
