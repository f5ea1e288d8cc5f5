// Attention of prompts on the tensor cores: a group has 64 queries of one KV head, a warp 16 of
// them, whose scores, shares and sums stay in its registers. All warps use the tile of keys and
// values in shared memory; while one of the two is used, the other comes. Sums are made in the
// order of softmax.h.
//
// Source: FlashAttention-2 (Dao 2023).
#include "device/kernels/softmax.h"
#include "device/kernels/tile_products.h"

namespace {

constexpr int kKeySteps = kKeys / 16, kKeyFragments = kKeys / 8;
static_assert(MC_PROMPT_QUERIES == MC_KERNEL_THREADS / 32 * 16 && kKeys == kTileRows);

struct PromptShared {
  MC_TILE keys[kTileNumbers];
  MC_TILE values[kTileNumbers];
  const void* from[2][kKeys];  // of a tile's keys in the blocks, and of the next one's
};

template <class T, uint32_t kDim>
struct Prompt {
  static constexpr int kDimSteps = kDim / 16;  // of k in scores; pairs of fragments in sums
  Pages<T> pages;
  PromptShared& s;
  uint32_t kv_head, last;  // positions that any query sees
  uint32_t least_limit;    // positions that every query sees
  float scale;             // of powers of two
  // Of a warp's queries t % 32 / 4 and 8 on, as far as the thread has them.
  Own<uint32_t, kDimSteps * 4> queries;
  Own<uint32_t, 2> limits;  // positions that they see
  Own<Softmax, 2> split;
  Own<float, kDimSteps * 8> sums;  // of the split
  Own<float, kKeyFragments * 4> scores;
  Own<uint32_t, kKeySteps * 4> shares;

  MC_DEVICE void find(uint32_t tile) {
    MC_EACH(t) {
      if (t < kKeys)
        s.from[tile / kKeys % 2][t] = pages.at(kv_head, tile + t < last ? tile + t : 0);
    }
  }
  // A tile of keys or of values begins to come, zeros after the last.
  MC_DEVICE void load(uint32_t tile, bool values) {
    constexpr uint32_t kPieces = kDim / 8, kTogether = MC_KERNEL_THREADS / kPieces, kBatch = 4;
    constexpr uint32_t kRounds = (kKeys + kTogether - 1) / kTogether;
    uint16_t* const to = values ? s.values : s.keys;
    const uint64_t beyond = values ? pages.to_values() : 0;
    const void* const* const from = s.from[tile / kKeys % 2];
    MC_EACH(t) {
      if (t < kTogether * kPieces && tile < last) {
        const uint32_t piece = t % kPieces, first = t / kPieces;
        MC_UNROLL
        for (uint32_t round = 0; round < kRounds; round += kBatch) {
          const T* rows[kBatch];
          MC_UNROLL
          for (uint32_t i = 0; i < kBatch; ++i) {
            const uint32_t at = first + (round + i) * kTogether;
            rows[i] = static_cast<const T*>(from[at < kKeys ? at : 0]) + beyond + piece * 8;
          }
          MC_UNROLL
          for (uint32_t i = 0; i < kBatch; ++i) {
            const uint32_t at = first + (round + i) * kTogether;
            if (at < kKeys) copy16(to + place_of(at, piece), rows[i], tile + at < last);
          }
        }
      }
      copies_end();
    }
  }
  // All that began to come is there, but the last load.
  MC_DEVICE void wait() {
    MC_EACH(t) {
      (void)t;
      copies_wait<1>();
      copies_visible();
    }
    barrier();
  }

  // Scores become shares, and sums count for what they still do.
  MC_DEVICE void weigh(uint32_t tile) {
    Own<float, 2> most, part;
    if (tile + kKeys > least_limit) {
      MC_EACH(t) {
        MC_UNROLL
        for (int i = 0; i < kKeyFragments * 4; ++i) {
          const uint32_t key = tile + static_cast<uint32_t>(i / 4 * 8 + i % 2) + t % 4 * 2;
          float& x = scores.of(t)[i];
          x = key < limits.of(t)[i / 2 % 2] ? x : -INFINITY;
        }
      }
    }
    MC_EACH(t) {
      MC_UNROLL
      for (int h = 0; h < 2; ++h) most.of(t)[h] = -INFINITY;
      MC_UNROLL
      for (int i = 0; i < kKeyFragments * 4; ++i) {
        float& to = most.of(t)[i / 2 % 2];
        to = greater(to, scores.of(t)[i]);
      }
    }
    quads_most(most);
    MC_EACH(t) {
      float columns[4] = {0, 0, 0, 0};  // two of each query
      float base[2];
      MC_UNROLL
      for (int h = 0; h < 2; ++h) {
        Softmax& to = split.of(t)[h];
        const float next = greater(to.most, most.of(t)[h] * scale);
        base[h] = base_of(next);
        to.keep = power_of_two(to.most - base[h]);
        to.most = next;
      }
      MC_UNROLL
      for (int i = 0; i < kKeyFragments * 4; i += 2) {
        const int h = i / 2 % 2;
        float share[2];
        MC_UNROLL
        for (int j = 0; j < 2; ++j) {
          share[j] = power_of_two(fmaf(scores.of(t)[i + j], scale, -base[h]));
          columns[h * 2 + j] += share[j];
        }
        shares.of(t)[i / 2] = two_rounded(T(), share[0], share[1]);
      }
      part.of(t)[0] = columns[0] + columns[1];
      part.of(t)[1] = columns[2] + columns[3];
    }
    quads_sum(part);
    MC_EACH(t) {
      MC_UNROLL
      for (int h = 0; h < 2; ++h) {
        Softmax& to = split.of(t)[h];
        to.total = to.total * to.keep + part.of(t)[h];
      }
      MC_UNROLL
      for (int i = 0; i < kDimSteps * 8; ++i) sums.of(t)[i] *= split.of(t)[i / 2 % 2].keep;
    }
  }

  // One split, from nothing. Its first keys come already.
  MC_DEVICE void attend(uint32_t begin) {
    MC_EACH(t) {
      MC_UNROLL
      for (int h = 0; h < 2; ++h) split.of(t)[h] = {-INFINITY, 0, 0};
      MC_UNROLL
      for (int i = 0; i < kDimSteps * 8; ++i) sums.of(t)[i] = 0;
    }
    const uint32_t end = least(last, begin + MC_SPLIT);
    for (uint32_t tile = begin; tile < end; tile += kKeys) {
      load(tile, true);
      find(tile + kKeys);
      wait();
      multiply_keys<T, kDimSteps>(scores, queries, s.keys);
      barrier();  // the keys are used up
      load(tile + kKeys, false);
      weigh(tile);
      wait();
      add_products<T, kDimSteps>(sums, shares, s.values);
      barrier();  // and the values
    }
  }
};

template <class T, uint32_t kDim>
MC_DEVICE void attend_prompt(Pages<T> pages, PromptShared& s, uint32_t last, float scale,
                             FlashRows r) {
  constexpr int kDimSteps = kDim / 16;
  const uint32_t least_limit = r.rows[r.first].position + 1;
  Prompt<T, kDim> p = {pages, s,  blockIdx.y, last, least_limit, scale_of_two(scale),
                       {},    {}, {},         {},   {},          {}};
  const uint32_t used = r.count * r.per_kv;
  const uint32_t row_floats = (r.heads + 2 * pages.kv_heads) * kDim;
  p.find(0);
  barrier();
  p.load(0, false);
  MC_EACH(t) {
    const uint32_t query = t / 32 * 16 + t % 32 / 4;
    MC_UNROLL
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t one = query + h * 8;
      const bool there = one < used;
      const uint32_t row = r.first + (there ? one / r.per_kv : 0);
      const uint32_t head = p.kv_head * r.per_kv + one % r.per_kv;
      const float* const from =
          r.qkv + static_cast<uint64_t>(row) * row_floats + head * kDim + t % 4 * 2;
      p.limits.of(t)[h] = there ? r.rows[row].position + 1 : 0;
      MC_UNROLL
      for (uint32_t i = 0; i < kDimSteps * 2; ++i) {  // k, and its second half
        p.queries.of(t)[i / 2 * 4 + i % 2 * 2 + h] =
            there ? two_rounded(T(), from[i * 8], from[i * 8 + 1]) : 0;
      }
    }
  }
  Own<float, kDimSteps * 8> totals;
  Own<Softmax, 2> all;
  MC_EACH(t) {
    MC_UNROLL
    for (int h = 0; h < 2; ++h) all.of(t)[h] = {-INFINITY, 0, 0};
    MC_UNROLL
    for (int i = 0; i < kDimSteps * 8; ++i) totals.of(t)[i] = 0;
  }
  for (uint32_t begin = 0; begin < last; begin += MC_SPLIT) {
    p.attend(begin);
    MC_EACH(t) {
      Merge merge[2];
      MC_UNROLL
      for (int h = 0; h < 2; ++h) {
        Softmax& to = all.of(t)[h];
        merge[h] = merged(to.most, p.split.of(t)[h].most);
        to.most = merge[h].most;
        to.total = fmaf(p.split.of(t)[h].total, merge[h].next, to.total * merge[h].before);
      }
      MC_UNROLL
      for (int i = 0; i < kDimSteps * 8; ++i) {
        const Merge& m = merge[i / 2 % 2];
        totals.of(t)[i] = fmaf(p.sums.of(t)[i], m.next, totals.of(t)[i] * m.before);
      }
    }
  }
  MC_EACH(t) {
    MC_UNROLL
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t query = t / 32 * 16 + t % 32 / 4 + h * 8;
      if (query >= used) continue;
      const uint64_t place = static_cast<uint64_t>(r.first + query / r.per_kv) * r.heads +
                             p.kv_head * r.per_kv + query % r.per_kv;
      float* const to = r.out + place * kDim + t % 4 * 2;
      const float part = 1.0f / all.of(t)[h].total;
      MC_UNROLL
      for (uint32_t i = 0; i < kDimSteps * 4; ++i)
        to[i / 2 * 8 + i % 2] = totals.of(t)[i / 2 * 4 + h * 2 + i % 2] * part;
    }
  }
}

template <class T>
MC_DEVICE void attend_prompt(Pages<T> pages, PromptShared& s, uint32_t last, float scale,
                             FlashRows r) {
  static_assert(MC_TENSOR_DIM_MAX == 128 && MC_TENSOR_DIM_STEP == 32);
  switch (pages.dim) {
    case 32: return attend_prompt<T, 32>(pages, s, last, scale, r);
    case 64: return attend_prompt<T, 64>(pages, s, last, scale, r);
    case 96: return attend_prompt<T, 96>(pages, s, last, scale, r);
    case 128: return attend_prompt<T, 128>(pages, s, last, scale, r);
  }
}

}  // namespace

#define MC_MAKE(name, T)                                                                      \
  MC_GLOBAL_BESIDE(2)                                                                         \
  mc_prompt_##name(const float* qkv, float* out, const mc_row* rows, char* kv,                \
                   const uint64_t* table, uint32_t table_width, uint64_t layer_offset,        \
                   uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t block_tokens,    \
                   float scale, uint32_t row_count, uint32_t together) {                      \
    MC_SHARED PromptShared shared;                                                            \
    const uint32_t group = gridDim.x - 1 - blockIdx.x; /* the longest first */                \
    const uint32_t first = group * together, count = least(together, row_count - first);      \
    const uint32_t last = rows[first + count - 1].position + 1;                               \
    const Pages<T> pages = {                                                                  \
        kv,           table + static_cast<uint64_t>(rows[first].sequence) * table_width,      \
        layer_offset, kv_heads,                                                               \
        dim,          block_tokens};                                                          \
    attend_prompt(pages, shared, last, scale,                                                 \
                  FlashRows{qkv, out, nullptr, rows, first, count, heads, heads / kv_heads}); \
  }
MC_MAKE(f16, F16)
MC_MAKE(bf16, Bf16)
#undef MC_MAKE
