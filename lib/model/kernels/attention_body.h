// Implements the kernels of attention.h once, over V. Included by kernels_body.h, whose remarks
// hold.
#pragma once

// Queries computed together, and vectors of each: their sums stay in registers.
constexpr uint32_t kQueries = V::kChains >= 16 ? 4 : 2;
constexpr uint32_t kVectors = V::kChains >= 16 ? 4 : 2;

// Calls f<n>(query) for all queries, n at a time.
template <uint32_t kRows, class F>
[[gnu::always_inline]] inline void in_rows(uint32_t query, uint32_t count, F& f) {
  for (; query + kRows <= count; query += kRows) f.template rows<kRows>(query);
  if constexpr (kRows > 1) in_rows<kRows - 1>(query, count, f);
}

// Scores become shares, of what is not seen 0. Returns how far the most was below the new one.
[[gnu::always_inline]] inline float soften(float* p, SeenKeys seen, float cap, Attention& a) {
  const uint32_t end = (seen.end + kLanes - 1) / kLanes * kLanes;
  if (cap > 0) soft_cap(p, seen.end, cap);
  for (uint32_t t = 0; t < seen.begin; ++t) p[t] = -__builtin_inff();
  for (uint32_t t = seen.end; t < end; ++t) p[t] = -__builtin_inff();
  V greatest = V::all(a.most);
  for (uint32_t t = 0; t < end; t += kLanes) greatest = V::greater_of(V::load(p + t), greatest);
  const float most = greatest.most();
  const V top = V::all(most);
  for (uint32_t t = 0; t < end; t += kLanes) exponential(V::sub(V::load(p + t), top)).store(p + t);
  for (uint32_t t = 0; t < seen.begin; ++t) p[t] = 0;
  for (uint32_t t = seen.end; t < end; ++t) p[t] = 0;
  const float above = a.most - most;
  a.most = most;
  return above;
}

[[gnu::always_inline]] inline V sum_of_shares(const float* p, uint32_t end) {
  V total = V::zero();
  for (uint32_t t = 0; t < end; t += kLanes) total = V::add(total, V::load(p + t));
  return total;
}

// The products of a query with `count` keys.
[[gnu::always_inline]] inline void score_keys(const float* query, const float* keys, uint32_t count,
                                              uint32_t dim, float* p) {
  uint32_t t = 0;
  for (; t + kLanes <= count; t += kLanes) {
    V sums[kLanes];
    MC_UNROLL
    for (uint32_t first = 0; first < kLanes; first += V::kChains) {
      const float* const from = keys + size_t{t + first} * dim;
      V some[V::kChains];
      MC_UNROLL
      for (uint32_t i = 0; i < V::kChains; ++i) some[i] = V::zero();
      for (uint32_t d = 0; d < dim; d += kLanes) {
        const V q = V::load(query + d);
        MC_UNROLL
        for (uint32_t i = 0; i < V::kChains; ++i)
          some[i] = V::fma(q, V::load(from + size_t{i} * dim + d), some[i]);
      }
      MC_UNROLL
      for (uint32_t i = 0; i < V::kChains; ++i) sums[first + i] = some[i];
    }
    V::sums(sums).store(p + t);
  }
  for (; t < count; ++t) {
    V sum = V::zero();
    for (uint32_t d = 0; d < dim; d += kLanes)
      sum = V::fma(V::load(query + d), V::load(keys + size_t{t} * dim + d), sum);
    p[t] = sum.sum();
  }
}

// sums[row][vector] += p[row][t] values[t][vector], in the order of t.
template <uint32_t kRows, uint32_t kWide>
[[gnu::noinline]] void add_values(const float* p, const float* values, uint32_t count, uint32_t dim,
                                  V (&tile)[kRows][kWide]) {
  V sums[kRows][kWide];
  copy_sums(tile, sums);
  for (uint32_t t = 0; t < count; ++t) {
    V v[kWide];
    MC_UNROLL
    for (uint32_t i = 0; i < kWide; ++i) v[i] = V::load(values + size_t{t} * dim + i * kLanes);
    add_product(p + t, kTile, v, sums);
  }
  copy_sums(sums, tile);
}

template <uint32_t kRows, uint32_t kWide>
[[gnu::always_inline]] inline void load_kept(const Attention* states, const float* keep, uint32_t d,
                                             V (&sums)[kRows][kWide]) {
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    MC_UNROLL
    for (uint32_t i = 0; i < kWide; ++i)
      sums[r][i] = V::mul(V::load(states[r].values + d + i * kLanes), V::all(keep[r]));
  }
}
template <uint32_t kRows, uint32_t kWide>
[[gnu::always_inline]] inline void store_values(const V (&sums)[kRows][kWide], uint32_t d,
                                                Attention* states) {
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    MC_UNROLL
    for (uint32_t i = 0; i < kWide; ++i) sums[r][i].store(states[r].values + d + i * kLanes);
  }
}

struct FloatRows {
  const FloatAttention& job;

  template <uint32_t kRows, uint32_t kWide>
  void values(uint32_t query, const float* p, const float* keep, uint32_t d) {
    V sums[kRows][kWide];
    load_kept(job.states + query, keep, d, sums);
    add_values(p, job.values + d, job.positions, job.dim, sums);
    store_values(sums, d, job.states + query);
  }
  template <uint32_t kRows>
  void rows(uint32_t query) {
    float p[kRows * kTile], keep[kLanes] = {};
    V totals[kRows];
    for (uint32_t r = 0; r < kRows; ++r) {
      float* const shares = p + r * kTile;
      score_keys(job.queries + size_t{query + r} * job.dim, job.keys, job.positions, job.dim,
                 shares);
      keep[r] = soften(shares, {0, job.positions}, job.cap, job.states[query + r]);
      totals[r] = sum_of_shares(shares, job.positions);
    }
    exponential(V::load(keep)).store(keep);
    for (uint32_t r = 0; r < kRows; ++r) {
      float& total = job.states[query + r].total;
      total = __builtin_fmaf(total, keep[r], totals[r].sum());
    }
    uint32_t d = 0;
    for (; d + kVectors * kLanes <= job.dim; d += kVectors * kLanes)
      values<kRows, kVectors>(query, p, keep, d);
    for (; d < job.dim; d += kLanes) values<kRows, 1>(query, p, keep, d);
  }
};

void attend(const FloatAttention& job) {
  FloatRows some{job};
  in_rows<kQueries>(0, job.count, some);
}

// Where pairs that are multiplied lie: x[row][pair], w[pair][vector].
struct PairPlaces {
  const uint16_t* x;
  size_t x_stride;  // numbers from a row to the next
  const std::byte* w;
  size_t step_bytes, vector_bytes;  // from a pair to the next; from 16 columns to the next
  uint32_t pairs;
};

template <uint32_t kRows, uint32_t kWide>
[[gnu::noinline]] void add_pairs(const PairPlaces& at, V (&tile)[kRows][kWide]) {
  V sums[kRows][kWide];
  copy_sums(tile, sums);
  const PairPlaces p = at;
  for (uint32_t i = 0; i < p.pairs; ++i) {
    V w[kWide];
    MC_UNROLL
    for (uint32_t v = 0; v < kWide; ++v)
      w[v] = V::load(reinterpret_cast<const float*>(p.w + i * p.step_bytes + v * p.vector_bytes));
    MC_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      uint32_t pair;
      __builtin_memcpy(&pair, p.x + r * p.x_stride + size_t{2} * i, sizeof pair);
      MC_UNROLL
      for (uint32_t v = 0; v < kWide; ++v) sums[r][v] = V::add_pair(sums[r][v], pair, w[v]);
    }
  }
  copy_sums(sums, tile);
}

struct PairScoreRows {
  const PairScores& job;

  template <uint32_t kRows, uint32_t kWide>
  void keys(uint32_t query, uint32_t key) {
    V sums[kRows][kWide];
    MC_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      MC_UNROLL
      for (uint32_t v = 0; v < kWide; ++v) sums[r][v] = V::zero();
    }
    const size_t panel = size_t{job.wide} * kLanes * 2;
    add_pairs({job.queries + size_t{query} * job.wide, job.wide, job.keys + key / kLanes * panel,
               4 * kLanes, panel, job.wide / 2},
              sums);
    MC_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      MC_UNROLL
      for (uint32_t v = 0; v < kWide; ++v)
        sums[r][v].store(job.scores + size_t{query + r} * kTile + key + v * kLanes);
    }
  }
  template <uint32_t kRows>
  void rows(uint32_t query) {
    uint32_t key = 0;
    for (; key + (kVectors - 1) * kLanes < job.positions; key += kVectors * kLanes)
      keys<kRows, kVectors>(query, key);
    for (; key < job.positions; key += kLanes) keys<kRows, 1>(query, key);
  }
};

void score_pairs(const PairScores& job) {
  PairScoreRows some{job};
  in_rows<kQueries>(0, job.count, some);
}

struct PairValueRows {
  const PairValues& job;

  template <uint32_t kRows, uint32_t kWide>
  void values(uint32_t query, const uint16_t* shares, uint32_t end, const float* keep, uint32_t d) {
    V sums[kRows][kWide];
    load_kept(job.states + query, keep, d, sums);
    add_pairs({shares, kTile, job.values + size_t{d} * 4, size_t{job.wide} * 4, 4 * kLanes,
               (end + 1) / 2},
              sums);
    store_values(sums, d, job.states + query);
  }
  // Shares to `end`, times the scales, rounded.
  template <uint32_t kRows>
  void round(const float* p, const float* scales, uint32_t end, uint16_t* shares) {
    for (uint32_t t = 0; t < end; t += kLanes) {
      const V scale = scales == nullptr ? V::all(1) : V::load(scales + t);
      for (uint32_t r = 0; r < kRows; ++r)
        V::mul(V::load(p + r * kTile + t), scale).store_bf16(shares + r * kTile + t);
    }
  }
  template <uint32_t kRows>
  void rows(uint32_t query) {
    float* const p = job.scores + size_t{query} * kTile;
    uint16_t shares[kRows * kTile];
    float keep[kLanes] = {};
    V totals[kRows];
    uint32_t end = 0;
    for (uint32_t r = 0; r < kRows; ++r)
      end = job.seen[query + r].end > end ? job.seen[query + r].end : end;
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t own = job.seen[query + r].end;
      keep[r] = soften(p + r * kTile, job.seen[query + r], job.cap, job.states[query + r]);
      for (uint32_t t = (own + kLanes - 1) / kLanes * kLanes; t < end; t += kLanes)
        V::zero().store(p + r * kTile + t);
    }
    exponential(V::load(keep)).store(keep);
    if (job.scales == nullptr) round<kRows>(p, nullptr, end, shares);
    for (uint32_t r = 0; r < kRows; ++r) {
      totals[r] = V::zero();
      for (uint32_t t = 0; t < end; t += kLanes)
        totals[r] = V::add(totals[r],
                           job.scales == nullptr
                               ? V::load_bf16(reinterpret_cast<std::byte*>(shares + r * kTile + t))
                               : V::load(p + r * kTile + t));
      float& total = job.states[query + r].total;
      total = __builtin_fmaf(total, keep[r], totals[r].sum());
    }
    uint32_t d = 0;
    if (job.scales != nullptr) {
      for (; d < job.wide; d += 2 * kLanes) {
        round<kRows>(p, job.scales + d / (2 * kLanes) * kTile, end, shares);
        values<kRows, 2>(query, shares, end, keep, d);
      }
      return;
    }
    for (; d + kVectors * kLanes <= job.wide; d += kVectors * kLanes)
      values<kRows, kVectors>(query, shares, end, keep, d);
    for (; d < job.wide; d += 2 * kLanes) values<kRows, 2>(query, shares, end, keep, d);
  }
};

void add_pair_values(const PairValues& job) {
  PairValueRows some{job};
  in_rows<kQueries>(0, job.count, some);
}

// Words of 32 bits of rows, of each 16 rows as [word][row].
void turn_words(const std::byte* const* rows, uint32_t count, uint32_t words, uint32_t flip,
                std::byte* out, size_t panel_bytes) {
  for (uint32_t first = 0; first < count; first += kLanes, out += panel_bytes)
    for (uint32_t word = 0; word < words; word += kLanes) {
      const uint32_t n = words - word < kLanes ? words - word : kLanes;
      for (uint32_t i = 0; i < kLanes; ++i)
        __builtin_prefetch(rows[first + i] + size_t{word} * 4 + kWidenAhead, 0, 2);
      V::turn(rows + first, size_t{word} * 4, n, flip, out + size_t{word} * 64);
    }
}

// Two rows' numbers side by side, as pairs of bf16.
void pair_rows(bool integers, const std::byte* first, const std::byte* second, uint32_t n,
               std::byte* out) {
  for (uint32_t i = 0; i < n; i += kLanes) {
    const size_t ahead = size_t{i} * (integers ? 1 : 2) + kWidenAhead;
    __builtin_prefetch(first + ahead, 0, 2);
    __builtin_prefetch(second + ahead, 0, 2);
    (integers ? V::pair_integers(first + i, second + i)
              : V::pair_bf16(first + size_t{2} * i, second + size_t{2} * i))
        .store(reinterpret_cast<float*>(out + size_t{4} * i));
  }
}
