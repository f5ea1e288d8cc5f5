// Stores keys and values into their blocks, and computes attention, a row and a head at a time. It
// uses the CPU's tiles, lanes and order: slow, but the same bits.
#include "device/kernels/pages.h"

namespace {

constexpr uint32_t kTile = 64;  // positions at a time

template <class T>
MC_DEVICE void store(const Pages<T>& pages, uint32_t position, float* qkv, const float* bias,
                     const float* turns, uint32_t heads, bool neighbours) {
  const uint32_t dim = pages.dim, half = dim / 2, turned = heads + pages.kv_heads;
  if (bias != nullptr) {
    MC_EACH(t) {
      for (uint32_t i = t; i < (turned + pages.kv_heads) * dim; i += MC_KERNEL_THREADS)
        qkv[i] += bias[i];
    }
    barrier();
  }
  MC_EACH(t) {
    for (uint32_t i = t; i < turned * half; i += MC_KERNEL_THREADS) {
      const uint32_t head = i / half, j = i % half;
      float* const a = qkv + head * dim + (neighbours ? 2 * j : j);
      float* const b = a + (neighbours ? 1 : half);
      const float x = *a, y = *b, c = turns[2 * j], s = turns[2 * j + 1];
      *a = x * c - y * s;
      *b = y * c + x * s;
    }
  }
  barrier();
  MC_EACH(t) {
    for (uint32_t i = t; i < 2 * pages.kv_heads * dim; i += MC_KERNEL_THREADS)
      from_float(qkv[heads * dim + i], pages.at(i / dim, position)[i % dim]);
  }
}

// The softmax so far: of all tiles that were seen.
struct Running {
  float most, total, keep;
};

template <class T>
MC_DEVICE void attend(const Pages<T>& pages, uint32_t position, uint32_t kv_head,
                      const float* query, float scale, float* out) {
  MC_SHARED float q[MC_HEAD_DIM_MAX];
  MC_SHARED float values[MC_HEAD_DIM_MAX];
  MC_SHARED float lanes[kTile * kLanes];
  MC_SHARED float p[kTile];
  MC_SHARED Running run;
  const uint32_t dim = pages.dim, wide = (dim + kLanes - 1) / kLanes * kLanes;
  MC_EACH(t) {
    if (t == 0) run = {-INFINITY, 0, 0};
    for (uint32_t d = t; d < wide; d += MC_KERNEL_THREADS) {
      q[d] = d < dim ? query[d] * scale : 0.0f;
      values[d] = 0;
    }
  }
  for (uint32_t tile = 0; tile <= position; tile += kTile) {
    const uint32_t count = least(kTile, position + 1 - tile);
    barrier();
    MC_EACH(t) {
      for (uint32_t i = t; i < count * kLanes; i += MC_KERNEL_THREADS) {
        const T* const key = pages.at(kv_head, tile + i / kLanes);
        float sum = 0;
        for (uint32_t d = i % kLanes; d < wide; d += kLanes)
          sum = fmaf(q[d], d < dim ? to_float(key[d]) : 0.0f, sum);
        lanes[i] = sum;
      }
    }
    barrier();
    MC_EACH(t) {
      if (t < count) p[t] = tree_sum(lanes + t * kLanes);
    }
    barrier();
    MC_EACH(t) {
      if (t == 0) {
        float most = run.most;
        for (uint32_t i = 0; i < count; ++i) most = p[i] > most ? p[i] : most;
        run.keep = tile == 0 ? 0.0f : exponential(run.most - most);
        run.most = most;
      }
    }
    barrier();
    MC_EACH(t) {
      if (t < kTile) p[t] = t < count ? exponential(p[t] - run.most) : 0.0f;
    }
    barrier();
    MC_EACH(t) {
      if (t < kLanes) lanes[t] = p[t] + p[t + kLanes] + p[t + 2 * kLanes] + p[t + 3 * kLanes];
    }
    barrier();
    MC_EACH(t) {
      if (t == 0) {
        const float sum = tree_sum(lanes);
        run.total = tile == 0 ? sum : fmaf(run.total, run.keep, sum);
      }
      for (uint32_t d = t; d < dim; d += MC_KERNEL_THREADS) {
        float value = values[d] * run.keep;
        for (uint32_t i = 0; i < count; ++i)
          value = fmaf(p[i], to_float(pages.at(pages.kv_heads + kv_head, tile + i)[d]), value);
        values[d] = value;
      }
    }
  }
  barrier();
  MC_EACH(t) {
    const float share = 1.0f / run.total;
    for (uint32_t d = t; d < dim; d += MC_KERNEL_THREADS) out[d] = values[d] * share;
  }
}

}  // namespace

#define MC_MAKE(name, T)                                                                           \
  MC_GLOBAL mc_store_##name(float* qkv, const float* bias, const mc_row* rows, const float* turns, \
                            char* kv, const uint64_t* table, uint32_t table_width,                 \
                            uint64_t layer_offset, uint32_t heads, uint32_t kv_heads,              \
                            uint32_t dim, uint32_t block_tokens, uint32_t neighbours) {            \
    const uint64_t row = blockIdx.x;                                                               \
    const Pages<T> pages = {kv,           table + rows[row].sequence * uint64_t(table_width),      \
                            layer_offset, kv_heads,                                                \
                            dim,          block_tokens};                                           \
    store(pages, rows[row].position, qkv + row * (heads + 2 * kv_heads) * dim, bias,               \
          turns + row * dim, heads, neighbours != 0);                                              \
  }                                                                                                \
  MC_GLOBAL mc_attend_##name(const float* qkv, float* out, const mc_row* rows, char* kv,           \
                             const uint64_t* table, uint32_t table_width, uint64_t layer_offset,   \
                             uint32_t heads, uint32_t kv_heads, uint32_t dim,                      \
                             uint32_t block_tokens, float scale) {                                 \
    const uint64_t row = blockIdx.x;                                                               \
    const uint32_t head = blockIdx.y;                                                              \
    const Pages<T> pages = {kv,           table + rows[row].sequence * uint64_t(table_width),      \
                            layer_offset, kv_heads,                                                \
                            dim,          block_tokens};                                           \
    attend(pages, rows[row].position, head / (heads / kv_heads),                                   \
           qkv + (row * (heads + 2 * kv_heads) + head) * dim, scale,                               \
           out + (row * heads + head) * dim);                                                      \
  }
MC_FOR_FORMATS(MC_MAKE)
#undef MC_MAKE
