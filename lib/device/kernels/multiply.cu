// Matrix products in plain multiply-adds, each element in the order of the CPU's: slow, and the
// same bits. A group computes MC_PLAIN_OUTPUTS outputs of MC_PLAIN_ROWS rows, a thread one output.
#include "device/kernels/group.h"

namespace {

constexpr uint32_t kStep = 16;  // k in shared memory at a time

// Which of n factors comes i-th: of a pair of bf16 the second comes first.
MC_DEVICE uint32_t turn_of(F32, uint32_t i, uint32_t) { return i; }
MC_DEVICE uint32_t turn_of(F16, uint32_t i, uint32_t) { return i; }
MC_DEVICE uint32_t turn_of(Bf16, uint32_t i, uint32_t n) { return (i ^ 1) < n ? i ^ 1 : i; }

template <class T>
struct Product {
  const T* w;
  const float* x;
  uint32_t outputs, k, rows;
  uint32_t first_output, first_row;

  // Factors [begin, begin + n) of the group's outputs and rows.
  MC_DEVICE void load(uint32_t t, uint32_t begin, uint32_t n, float* ws, float* xs) const {
    for (uint32_t i = t; i < MC_PLAIN_OUTPUTS * kStep; i += MC_KERNEL_THREADS) {
      const uint32_t o = i / kStep, at = i % kStep;
      const bool there = first_output + o < outputs && at < n;
      ws[o * (kStep + 1) + at] =
          there ? to_float(w[static_cast<uint64_t>(first_output + o) * k + begin + at]) : 0.0f;
    }
    for (uint32_t i = t; i < MC_PLAIN_ROWS * kStep; i += MC_KERNEL_THREADS) {
      const uint32_t r = i / kStep, at = i % kStep;
      const bool there = first_row + r < rows && at < n;
      xs[i] = there ? x[static_cast<uint64_t>(first_row + r) * k + begin + at] : 0.0f;
    }
  }
};

template <class T>
MC_DEVICE void multiply(const Product<T>& p, float* y, uint32_t segments, bool add) {
  MC_SHARED float ws[MC_PLAIN_OUTPUTS * (kStep + 1)];
  MC_SHARED float xs[MC_PLAIN_ROWS * kStep];
  Own<float, MC_PLAIN_ROWS> sums, totals;
  const uint32_t live = least(MC_PLAIN_ROWS, p.rows - p.first_row), part = p.k / segments;
  for (uint32_t s = 0; s < segments; ++s) {
    MC_EACH(t) {
      for (uint32_t r = 0; r < MC_PLAIN_ROWS; ++r) sums.of(t)[r] = 0;
    }
    for (uint32_t begin = 0; begin < part; begin += kStep) {
      const uint32_t n = least(kStep, part - begin);
      barrier();
      MC_EACH(t) { p.load(t, s * part + begin, n, ws, xs); }
      barrier();
      MC_EACH(t) {
        float* const mine = sums.of(t);
        for (uint32_t i = 0; i < n; ++i) {
          const uint32_t at = turn_of(T(), i, n);
          const float weight = ws[t * (kStep + 1) + at];
          MC_UNROLL
          for (uint32_t r = 0; r < MC_PLAIN_ROWS; ++r)
            if (r < live) mine[r] = fmaf(xs[r * kStep + at], weight, mine[r]);
        }
      }
    }
    MC_EACH(t) {
      for (uint32_t r = 0; r < MC_PLAIN_ROWS; ++r)
        totals.of(t)[r] = s == 0 ? sums.of(t)[r] : totals.of(t)[r] + sums.of(t)[r];
    }
  }
  MC_EACH(t) {
    if (p.first_output + t < p.outputs) MC_UNROLL
    for (uint32_t r = 0; r < MC_PLAIN_ROWS; ++r)
      if (r < live) {
        float& to = y[static_cast<uint64_t>(p.first_row + r) * p.outputs + p.first_output + t];
        to = add ? to + totals.of(t)[r] : totals.of(t)[r];
      }
  }
}

}  // namespace

#define MC_MAKE(name, T)                                                                           \
  MC_GLOBAL mc_multiply_##name(const T* w, const float* x, float* y, uint32_t outputs, uint32_t k, \
                               uint32_t rows, uint32_t segments, uint32_t add) {                   \
    const Product<T> product = {                                                                   \
        w, x, outputs, k, rows, blockIdx.x * MC_PLAIN_OUTPUTS, blockIdx.y * MC_PLAIN_ROWS};        \
    multiply(product, y, segments, add != 0);                                                      \
  }
MC_FOR_FORMATS(MC_MAKE)
#undef MC_MAKE
