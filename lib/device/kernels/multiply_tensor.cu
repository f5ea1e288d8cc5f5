// Matrix products on the tensor cores, for weights and activations of 16 bits: a group computes 64
// rows by 128 outputs, each of its 4 warps 32 by 64, while the next factors come into shared
// memory. An element's sum goes through k in one order, whatever is computed together.
#include "device/kernels/tensor.h"

namespace {

constexpr uint32_t kTensorStep = 32;                // k at a time
constexpr uint32_t kTensorPitch = kTensorStep + 8;  // of a row in shared memory: no bank twice
constexpr uint32_t kStages = 3;
constexpr uint32_t kTensorTile = (MC_TENSOR_ROWS + MC_TENSOR_OUTPUTS) * kTensorPitch;

template <class T>
struct TensorProduct {
  const T *w, *x;
  uint32_t outputs, k, rows, first_output, first_row;

  // Thread t's part of step `step` into a stage: rows of x, then rows of w, 16 bytes at a time.
  MC_DEVICE void load(uint32_t t, uint32_t step, uint16_t* stage) const {
    constexpr uint32_t kPieces = kTensorStep / 8;
    MC_UNROLL
    for (uint32_t i = t; i < (MC_TENSOR_ROWS + MC_TENSOR_OUTPUTS) * kPieces;
         i += MC_KERNEL_THREADS) {
      const uint32_t row = i / kPieces, at = step * kTensorStep + i % kPieces * 8;
      const bool of_x = row < MC_TENSOR_ROWS;
      const uint32_t n = of_x ? first_row + row : first_output + row - MC_TENSOR_ROWS;
      const bool there = at < k && n < (of_x ? rows : outputs);
      const T* const from = of_x ? x : w;
      copy16(stage + row * kTensorPitch + i % kPieces * 8,
             from + (there ? static_cast<uint64_t>(n) * k + at : 0), there);
    }
  }
};

// Two neighbours along k, of a row in shared memory.
MC_DEVICE uint32_t pair_at(const uint16_t* stage, uint32_t row, uint32_t k) {
  return two(stage + row * kTensorPitch + k);
}

template <class T>
MC_DEVICE void multiply_tensor(const TensorProduct<T>& p, float* y, bool add) {
  alignas(16) MC_SHARED uint16_t shared[kStages * kTensorTile];
  Own<float, 2 * 8 * 4> sums;
  Own<uint32_t, 2 * 4> a;
  Own<uint32_t, 8 * 2> b;
  const uint32_t steps = (p.k + kTensorStep - 1) / kTensorStep;
  MC_EACH(t) {
    MC_UNROLL
    for (uint32_t i = 0; i < 64; ++i) sums.of(t)[i] = 0;
    for (uint32_t s = 0; s + 1 < kStages; ++s) {
      if (s < steps) p.load(t, s, shared + s * kTensorTile);
      copies_end();
    }
  }
  for (uint32_t step = 0; step < steps; ++step) {
    MC_EACH(t) {
      (void)t;
      copies_wait<kStages - 2>();
    }
    barrier();  // the step is there, and the stage of the one before is free
    MC_EACH(t) {
      const uint32_t next = step + kStages - 1;
      if (next < steps) p.load(t, next, shared + next % kStages * kTensorTile);
      copies_end();
    }
    const uint16_t* const stage = shared + step % kStages * kTensorTile;
    MC_UNROLL
    for (uint32_t k = 0; k < kTensorStep; k += 16) {
      MC_EACH(t) {
        const uint32_t warp = t / 32, row = t % 32 / 4, at = k + t % 4 * 2;
        MC_UNROLL
        for (uint32_t m = 0; m < 2; ++m) MC_UNROLL
        for (uint32_t i = 0; i < 4; ++i)
          a.of(t)[m * 4 + i] =
              pair_at(stage, warp % 2 * 32 + m * 16 + row + i % 2 * 8, at + i / 2 * 8);
        MC_UNROLL
        for (uint32_t n = 0; n < 8; ++n) MC_UNROLL
        for (uint32_t i = 0; i < 2; ++i)
          b.of(t)[n * 2 + i] =
              pair_at(stage, MC_TENSOR_ROWS + warp / 2 * 64 + n * 8 + row, at + i * 8);
      }
      multiply_fragments<T, 2, 8>(sums, a, b);
    }
  }
  MC_EACH(t) {
    const uint32_t warp = t / 32;
    MC_UNROLL
    for (uint32_t i = 0; i < 64; ++i) {
      const uint32_t m = i / 32, n = i / 4 % 8;
      const uint32_t row = p.first_row + warp % 2 * 32 + m * 16 + t % 32 / 4 + i % 4 / 2 * 8;
      const uint32_t output = p.first_output + warp / 2 * 64 + n * 8 + t % 4 * 2 + i % 2;
      if (row < p.rows && output < p.outputs) {
        float& to = y[static_cast<uint64_t>(row) * p.outputs + output];
        to = add ? to + sums.of(t)[i] : sums.of(t)[i];
      }
    }
  }
}

template <class T>
MC_DEVICE void round_values(const float* x, T* out, uint64_t n) {
  MC_EACH(t) {
    const uint64_t begin = static_cast<uint64_t>(blockIdx.x) * MC_ROUND_PART;
    for (uint64_t i = begin + t; i < n && i < begin + MC_ROUND_PART; i += MC_KERNEL_THREADS)
      from_float(x[i], out[i]);
  }
}

}  // namespace

#define MC_MAKE(name, T)                                                                      \
  MC_GLOBAL mc_tensor_##name(const T* w, const T* x, float* y, uint32_t outputs, uint32_t k,  \
                             uint32_t rows, uint32_t add) {                                   \
    const TensorProduct<T> product = {                                                        \
        w, x, outputs, k, rows, blockIdx.x * MC_TENSOR_OUTPUTS, blockIdx.y * MC_TENSOR_ROWS}; \
    multiply_tensor(product, y, add != 0);                                                    \
  }                                                                                           \
  MC_GLOBAL mc_round_##name(const float* x, T* out, uint64_t n) { round_values(x, out, n); }
MC_MAKE(f16, F16)
MC_MAKE(bf16, Bf16)
#undef MC_MAKE
