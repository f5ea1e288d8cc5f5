// Attention on the tensor cores, of up to 16 queries of one KV head at a time: the heads that share
// it, of one row or of neighbours of a sequence. Positions are taken in splits of MC_SPLIT and
// tiles of 64; splits are merged in order, by the same group (prompts) or by mc_combine (steps,
// where they are computed side by side). What a query gets depends on its own sequence only, so a
// prompt and a step compute the same bits.
#include "device/kernels/softmax.h"
#include "device/kernels/tensor.h"

namespace {

constexpr uint32_t kQueries = 16, kShares = MC_KERNEL_THREADS / kQueries;
constexpr uint32_t kSharePitch = kKeys + 8;
constexpr uint32_t kColumns = MC_TENSOR_DIM_MAX / 4 / 8;  // fragments of a warp's part of the dim

struct FlashShared {
  alignas(16) uint16_t q[kQueries * kHeadPitch];
  alignas(16) uint16_t keys[kKeys * kHeadPitch];
  alignas(16) uint16_t values[kKeys * kHeadPitch];
  alignas(16) uint16_t shares[kQueries * kSharePitch];
  float scores[kQueries * kKeys];
  float parts[MC_KERNEL_THREADS];
  uint32_t limits[kQueries];  // positions that a query sees
  Softmax split[kQueries], all[kQueries];
  Merge merge[kQueries];
};

template <class T>
struct Flash {
  Pages<T> pages;
  FlashShared& s;
  uint32_t kv_head, last;  // positions that any query sees
  float scale;             // of powers of two

  // A tile of keys and values into shared memory, zeros after the last.
  MC_DEVICE void load(uint32_t t, uint32_t tile) const {
    const uint32_t pieces = pages.dim / 8;
    for (uint32_t i = t; i < kKeys * pieces; i += MC_KERNEL_THREADS) {
      const uint32_t at = i / pieces, d = i % pieces * 8, position = tile + at;
      const bool there = position < last;
      const uint32_t from = there ? position : 0;
      copy16(s.keys + at * kHeadPitch + d, pages.at(kv_head, from) + d, there);
      copy16(s.values + at * kHeadPitch + d, pages.at(pages.kv_heads + kv_head, from) + d, there);
    }
    copies_end();
    copies_wait<0>();
  }

  // Products of the queries with the tile's keys; a warp takes 16 of them.
  MC_DEVICE void score() {
    Own<float, 8> sums;
    Own<uint32_t, 4> a, b;
    MC_EACH(t) {
      MC_UNROLL
      for (uint32_t i = 0; i < 8; ++i) sums.of(t)[i] = 0;
    }
    for (uint32_t k = 0; k < pages.dim; k += 16) {
      MC_EACH(t) {
        const uint32_t row = t % 32 / 4, at = k + t % 4 * 2, first = t / 32 * 16;
        MC_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          a.of(t)[i] = two(s.q + (row + i % 2 * 8) * kHeadPitch + at + i / 2 * 8);
          b.of(t)[i] = two(s.keys + (first + i / 2 * 8 + row) * kHeadPitch + at + i % 2 * 8);
        }
      }
      multiply_fragments<T, 1, 2>(sums, a, b);
    }
    MC_EACH(t) {
      MC_UNROLL
      for (uint32_t i = 0; i < 8; ++i)
        s.scores[(t % 32 / 4 + i / 2 % 2 * 8) * kKeys + t / 32 * 16 + i / 4 * 8 + t % 4 * 2 +
                 i % 2] = sums.of(t)[i];
    }
  }

  // The tile's shares of the softmax, by a thread for each of a query's columns.
  MC_DEVICE void weigh(uint32_t tile) {
    static_assert(kShares == kSoftmaxColumns);
    MC_EACH(t) {
      const uint32_t query = t / kShares;
      float most = -INFINITY;
      for (uint32_t i = t % kShares; i < kKeys; i += kShares)
        if (tile + i < s.limits[query]) most = greater(most, s.scores[query * kKeys + i]);
      s.parts[t] = most;
    }
    barrier();
    MC_EACH(t) {
      if (t < kQueries) {
        float most = s.parts[t * kShares];
        for (uint32_t i = 1; i < kShares; ++i) most = greater(most, s.parts[t * kShares + i]);
        most = greater(s.split[t].most, most * scale);
        s.split[t].keep = power_of_two(s.split[t].most - base_of(most));
        s.split[t].most = most;
      }
    }
    barrier();
    MC_EACH(t) {
      const uint32_t query = t / kShares;
      const float base = base_of(s.split[query].most);
      float sum = 0;
      for (uint32_t i = t % kShares; i < kKeys; i += kShares) {
        const bool seen = tile + i < s.limits[query];
        const float score = s.scores[query * kKeys + i];
        const float share = seen ? power_of_two(fmaf(score, scale, -base)) : 0.0f;
        sum += share;
        T rounded;
        from_float(share, rounded);
        s.shares[query * kSharePitch + i] = rounded.bits;
      }
      s.parts[t] = sum;
    }
    barrier();
    MC_EACH(t) {
      if (t < kQueries) {
        const float* const c = s.parts + t * kShares;
        const float sum = ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
        s.split[t].total = s.split[t].total * s.split[t].keep + sum;
      }
    }
  }

  // sums = sums x keep + shares x values; a warp takes a quarter of the dim.
  MC_DEVICE void add_values(Own<float, kColumns * 4>& sums) {
    Own<uint32_t, 4> a;
    Own<uint32_t, kColumns * 2> b;
    const uint32_t quarter = pages.dim / 4;
    MC_EACH(t) {
      MC_UNROLL
      for (uint32_t i = 0; i < kColumns * 4; ++i)
        sums.of(t)[i] *= s.split[t % 32 / 4 + i / 2 % 2 * 8].keep;
    }
    for (uint32_t k = 0; k < kKeys; k += 16) {
      MC_EACH(t) {
        const uint32_t row = t % 32 / 4, at = k + t % 4 * 2, column = t / 32 * quarter + row;
        MC_UNROLL
        for (uint32_t i = 0; i < 4; ++i)
          a.of(t)[i] = two(s.shares + (row + i % 2 * 8) * kSharePitch + at + i / 2 * 8);
        MC_UNROLL
        for (uint32_t i = 0; i < kColumns * 2; ++i) {
          const uint16_t* const from =
              s.values + (at + i % 2 * 8) * kHeadPitch + column + i / 2 * 8;
          b.of(t)[i] = i / 2 * 8 < quarter ? joined(from[0], from[kHeadPitch]) : 0;
        }
      }
      multiply_fragments<T, 1, kColumns>(sums, a, b);
    }
  }

  // One split, from nothing.
  MC_DEVICE void attend(uint32_t split, Own<float, kColumns * 4>& sums) {
    MC_EACH(t) {
      if (t < kQueries) s.split[t] = {-INFINITY, 0, 0};
      MC_UNROLL
      for (uint32_t i = 0; i < kColumns * 4; ++i) sums.of(t)[i] = 0;
    }
    const uint32_t end = least(last, (split + 1) * MC_SPLIT);
    for (uint32_t tile = split * MC_SPLIT; tile < end; tile += kKeys) {
      barrier();  // the tile before is used up
      MC_EACH(t) { load(t, tile); }
      barrier();
      score();
      barrier();
      weigh(tile);
      barrier();
      add_values(sums);
    }
    barrier();
  }
};

// Column of the dim that a thread's i-th sum belongs to, and its query.
MC_DEVICE uint32_t column_of(uint32_t t, uint32_t i, uint32_t dim) {
  return t / 32 * (dim / 4) + i / 4 * 8 + t % 4 * 2 + i % 2;
}
MC_DEVICE uint32_t query_of(uint32_t t, uint32_t i) { return t % 32 / 4 + i / 2 % 2 * 8; }

template <class T>
MC_DEVICE void attend_tensor(Flash<T> f, FlashRows r) {
  FlashShared& s = f.s;
  const uint32_t dim = f.pages.dim, used = r.count * r.per_kv;
  const uint32_t row_floats = (r.heads + 2 * f.pages.kv_heads) * dim;
  MC_EACH(t) {
    for (uint32_t i = t; i < kQueries * dim; i += MC_KERNEL_THREADS) {
      const uint32_t query = i / dim, head = f.kv_head * r.per_kv + query % r.per_kv;
      T rounded = {};
      if (query < used)
        from_float(r.qkv[static_cast<uint64_t>(r.first + query / r.per_kv) * row_floats +
                         head * dim + i % dim],
                   rounded);
      s.q[query * kHeadPitch + i % dim] = rounded.bits;
    }
    if (t < kQueries) {
      s.limits[t] = t < used ? r.rows[r.first + t / r.per_kv].position + 1 : 0;
      s.all[t] = {-INFINITY, 0, 0};
    }
  }
  Own<float, kColumns * 4> sums, totals;
  MC_EACH(t) {
    MC_UNROLL
    for (uint32_t i = 0; i < kColumns * 4; ++i) totals.of(t)[i] = 0;
  }
  const uint32_t splits = (f.last + MC_SPLIT - 1) / MC_SPLIT;
  const bool alone = r.parts == nullptr;  // all splits, one after the other
  for (uint32_t split = alone ? 0 : blockIdx.z; split < (alone ? splits : blockIdx.z + 1);
       ++split) {
    f.attend(split, sums);
    MC_EACH(t) {
      if (t < kQueries) {
        s.merge[t] = merged(s.all[t].most, s.split[t].most);
        s.all[t].most = s.merge[t].most;
        s.all[t].total =
            fmaf(s.split[t].total, s.merge[t].next, s.all[t].total * s.merge[t].before);
      }
    }
    barrier();
    if (!alone) break;
    MC_EACH(t) {
      MC_UNROLL
      for (uint32_t i = 0; i < kColumns * 4; ++i) {
        const Merge m = s.merge[query_of(t, i)];
        totals.of(t)[i] = fmaf(sums.of(t)[i], m.next, totals.of(t)[i] * m.before);
      }
    }
  }
  MC_EACH(t) {
    MC_UNROLL
    for (uint32_t i = 0; i < kColumns * 4; ++i) {
      const uint32_t query = query_of(t, i), d = column_of(t, i, dim);
      if (query < used && i / 4 * 8 < dim / 4) {
        const uint64_t place = static_cast<uint64_t>(r.first + query / r.per_kv) * r.heads +
                               f.kv_head * r.per_kv + query % r.per_kv;
        if (alone) {
          r.out[place * dim + d] = totals.of(t)[i] * (1.0f / s.all[query].total);
        } else {
          float* const part = r.parts + (place * gridDim.z + blockIdx.z) * (dim + 2);
          part[d] = sums.of(t)[i];
          part[dim] = s.split[query].most;
          part[dim + 1] = s.split[query].total;
        }
      }
    }
  }
}

MC_DEVICE void combine(const float* parts, uint32_t splits, float* out, uint32_t dim) {
  MC_EACH(t) {
    for (uint32_t d = t; d < dim; d += MC_KERNEL_THREADS) {
      float most = -INFINITY, total = 0, value = 0;
      for (uint32_t i = 0; i < splits; ++i) {
        const float* const part = parts + static_cast<uint64_t>(i) * (dim + 2);
        const Merge m = merged(most, part[dim]);
        most = m.most;
        total = fmaf(part[dim + 1], m.next, total * m.before);
        value = fmaf(part[d], m.next, value * m.before);
      }
      out[d] = value * (1.0f / total);
    }
  }
}

}  // namespace

#define MC_MAKE(name, T)                                                                          \
  MC_GLOBAL mc_flash_##name(const float* qkv, float* out, float* parts, const mc_row* rows,       \
                            char* kv, const uint64_t* table, uint32_t table_width,                \
                            uint64_t layer_offset, uint32_t heads, uint32_t kv_heads,             \
                            uint32_t dim, uint32_t block_tokens, float scale, uint32_t row_count, \
                            uint32_t together) {                                                  \
    MC_SHARED FlashShared shared;                                                                 \
    const uint32_t first = blockIdx.x * together, count = least(together, row_count - first);     \
    const uint32_t last = rows[first + count - 1].position + 1;                                   \
    if (parts != nullptr && blockIdx.z * MC_SPLIT >= last) return;                                \
    const Pages<T> pages = {                                                                      \
        kv,           table + static_cast<uint64_t>(rows[first].sequence) * table_width,          \
        layer_offset, kv_heads,                                                                   \
        dim,          block_tokens};                                                              \
    const Flash<T> flash = {pages, shared, blockIdx.y, last, scale_of_two(scale)};                \
    attend_tensor(flash, {qkv, out, parts, rows, first, count, heads, heads / kv_heads});         \
  }
MC_MAKE(f16, F16)
MC_MAKE(bf16, Bf16)
#undef MC_MAKE

MC_GLOBAL mc_combine(const float* parts, float* out, const mc_row* rows, uint32_t dim,
                     uint32_t splits) {
  const uint64_t place = static_cast<uint64_t>(blockIdx.x) * gridDim.y + blockIdx.y;
  combine(parts + place * splits * (dim + 2), rows[blockIdx.x].position / MC_SPLIT + 1,
          out + place * dim, dim);
}
