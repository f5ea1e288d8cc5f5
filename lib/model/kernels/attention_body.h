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
[[gnu::always_inline]] inline void add_pairs(const PairPlaces& p, V (&sums)[kRows][kWide]) {
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
}

// Functions of their own, as a product's add_steps: so the sums stay in registers.
template <uint32_t kRows, uint32_t kWide>
[[gnu::noinline]] void score_tile(const PairPlaces& at, float* scores) {
  const PairPlaces p = at;
  V sums[kRows][kWide];
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    MC_UNROLL
    for (uint32_t v = 0; v < kWide; ++v) sums[r][v] = V::zero();
  }
  add_pairs(p, sums);
  MC_UNROLL
  for (uint32_t r = 0; r < kRows; ++r) {
    MC_UNROLL
    for (uint32_t v = 0; v < kWide; ++v) sums[r][v].store(scores + r * kTile + v * kLanes);
  }
}
template <uint32_t kRows, uint32_t kWide>
[[gnu::noinline]] void mix_tile(const PairPlaces& at, const float* keep, uint32_t d,
                                Attention* states) {
  const PairPlaces p = at;
  V sums[kRows][kWide];
  load_kept(states, keep, d, sums);
  add_pairs(p, sums);
  store_values(sums, d, states);
}

constexpr uint32_t kTurned = 8;  // words of 16 rows that are turned at a time

// Of kSets times 16 keys as they lie. The sums of one set would wait for each other.
template <uint32_t kRows, uint32_t kSets>
[[gnu::noinline]] void score_rows(const PairScores& at, uint32_t query, uint32_t key) {
  const PairScores job = at;
  const uint16_t* const queries = job.queries + size_t{query} * job.wide;
  V sums[kSets][kRows];
  MC_UNROLL
  for (uint32_t s = 0; s < kSets; ++s) {
    MC_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) sums[s][r] = V::zero();
  }
  for (uint32_t word = 0; word < job.wide / 2; word += kTurned) {
    MC_UNROLL
    for (uint32_t s = 0; s < kSets; ++s) {
      const std::byte* const* const ahead = job.key_rows.ahead + key + s * kLanes;
      for (uint32_t i = 0; word % kLanes == 0 && i < kLanes; ++i)
        __builtin_prefetch(ahead[i] + size_t{word} * 4, 0, 2);
      std::byte turned[kTurned * 4 * kLanes];
      V::turn(job.key_rows.rows + key + s * kLanes, size_t{word} * 4, kTurned, 0, turned);
      MC_UNROLL
      for (uint32_t i = 0; i < kTurned; ++i) {
        const V w = V::load(reinterpret_cast<const float*>(turned + size_t{i} * 4 * kLanes));
        MC_UNROLL
        for (uint32_t r = 0; r < kRows; ++r) {
          uint32_t pair;
          __builtin_memcpy(&pair, queries + r * job.wide + size_t{2} * (word + i), sizeof pair);
          sums[s][r] = V::add_pair(sums[s][r], pair, w);
        }
      }
    }
  }
  MC_UNROLL
  for (uint32_t s = 0; s < kSets; ++s) {
    MC_UNROLL
    for (uint32_t r = 0; r < kRows; ++r)
      sums[s][r].store(job.scores + size_t{query + r} * kTile + key + s * kLanes);
  }
}

// Numbers of two positions' values side by side, from `d` on.
template <uint32_t kWide>
[[gnu::always_inline]] inline void pair_values(const std::byte* const* rows, uint32_t d,
                                               std::byte* out) {
  static_assert(kWide % 2 == 0);
  MC_UNROLL
  for (uint32_t v = 0; v < kWide; v += 2) {
    const size_t at = (size_t{d} + v * kLanes) * 2;
    V::pair_bf16(rows[0] + at, rows[1] + at, out + size_t{v} * 4 * kLanes);
  }
}

// Values of pairs of positions as they lie: what mix_tile does of laid out ones.
template <uint32_t kRows, uint32_t kWide>
[[gnu::noinline]] void mix_rows(const uint16_t* shares, PairRows values, uint32_t pairs,
                                const float* keep, uint32_t d, Attention* states) {
  V sums[kRows][kWide];
  load_kept(states, keep, d, sums);
  for (uint32_t i = 0; i < pairs; ++i) {
    std::byte both[kWide * 4 * kLanes];
    MC_UNROLL
    for (uint32_t v = 0; v < kWide; v += 2) {
      const size_t at = (size_t{d} + v * kLanes) * 2;
      __builtin_prefetch(values.ahead[2 * i] + at, 0, 2);
      __builtin_prefetch(values.ahead[2 * i + 1] + at, 0, 2);
    }
    pair_values<kWide>(values.rows + size_t{2} * i, d, both);
    V w[kWide];
    MC_UNROLL
    for (uint32_t v = 0; v < kWide; ++v)
      w[v] = V::load(reinterpret_cast<const float*>(both + size_t{v} * 4 * kLanes));
    MC_UNROLL
    for (uint32_t r = 0; r < kRows; ++r) {
      uint32_t pair;
      __builtin_memcpy(&pair, shares + r * kTile + size_t{2} * i, sizeof pair);
      MC_UNROLL
      for (uint32_t v = 0; v < kWide; ++v) sums[r][v] = V::add_pair(sums[r][v], pair, w[v]);
    }
  }
  store_values(sums, d, states);
}

struct PairScoreRows {
  const PairScores& job;

  template <uint32_t kRows, uint32_t kWide>
  void keys(uint32_t query, uint32_t key) {
    const size_t panel = size_t{job.wide} * kLanes * 2;
    score_tile<kRows, kWide>({job.queries + size_t{query} * job.wide, job.wide,
                              job.keys + key / kLanes * panel, 4 * kLanes, panel, job.wide / 2},
                             job.scores + size_t{query} * kTile + key);
  }
  template <uint32_t kRows>
  void rows(uint32_t query) {
    uint32_t key = 0;
    if (job.key_rows.rows != nullptr) {
      for (; key + kLanes < job.positions; key += 2 * kLanes) score_rows<kRows, 2>(job, query, key);
      if (key < job.positions) score_rows<kRows, 1>(job, query, key);
      return;
    }
    for (; key + (kVectors - 1) * kLanes < job.positions; key += kVectors * kLanes)
      keys<kRows, kVectors>(query, key);
    for (; key < job.positions; key += kLanes) keys<kRows, 1>(query, key);
  }
};

void score_pairs(const PairScores& job) {
  PairScoreRows some{job};
  in_rows<kQueries>(0, job.count, some);
}

constexpr uint32_t to_lanes(uint32_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Shares of up to kLanes queries, found together.
struct PairShares {
  uint16_t rounded[kLanes * kTile];  // [query][position]
  float keep[kLanes];                // what is left of sums so far
};

// The most, or the sum, of the lanes of each of `count` vectors. Of few one by one.
constexpr uint32_t kManyVectors = 8;
[[gnu::always_inline]] inline void mosts_of(const V (&v)[kLanes], uint32_t count, float* out) {
  if (count >= kManyVectors) return V::mosts(v).store(out);
  for (uint32_t i = 0; i < count; ++i) out[i] = v[i].most();
}
[[gnu::always_inline]] inline void sums_of(const V (&v)[kLanes], uint32_t count, float* out) {
  if (count >= kManyVectors) return V::sums(v).store(out);
  for (uint32_t i = 0; i < count; ++i) out[i] = v[i].sum();
}

// Caps a query's scores, and hides those of what it does not see. Returns the most of each lane.
[[gnu::always_inline]] inline V hide_scores(float* p, SeenKeys seen, float cap) {
  const uint32_t end = to_lanes(seen.end);
  if (cap > 0) soft_cap(p, seen.end, cap);
  for (uint32_t t = 0; t < seen.begin; ++t) p[t] = -__builtin_inff();
  for (uint32_t t = seen.end; t < end; ++t) p[t] = -__builtin_inff();
  V most = V::all(-__builtin_inff());
  for (uint32_t t = 0; t < end; t += kLanes) most = V::greater_of(V::load(p + t), most);
  return most;
}

// 2^x for x up to 0, off by 1/300,000 of itself at most; below -126 it is as for -126. The
// polynomial has the least relative error from -1/2 to 1/2 among those that are 1 at 0.
[[gnu::always_inline]] inline V power_of_two(V x) {
  x = V::greater_of(x, V::all(-126.0f));
  const V n = V::round(x), f = V::sub(x, n);
  V p = V::all(0.0095828528f);
  p = V::fma(p, f, V::all(0.055906425f));
  p = V::fma(p, f, V::all(0.240240986f));
  p = V::fma(p, f, V::all(0.693124193f));
  p = V::fma(p, f, V::all(1.0f));
  return V::scale(p, n);
}

// A query's scores become shares: rounded ones, or in their place. Returns the sums by lanes.
template <bool kRounds>
[[gnu::always_inline]] inline V shares_of(float* p, SeenKeys seen, float most, uint16_t* rounded) {
  const V top = V::all(most), log2_e = V::all(1.44269504088896341f);
  const uint32_t end = to_lanes(seen.end);
  V total = V::zero();
  for (uint32_t t = 0; t < end; t += kLanes) {
    V share = power_of_two(V::mul(V::sub(V::load(p + t), top), log2_e));
    if constexpr (kRounds)
      share = share.store_share(rounded + t);
    else
      share.store(p + t);
    total = V::add(total, share);
  }
  if (seen.begin == 0 && seen.end == end) return total;
  for (uint32_t t = 0; t < seen.begin; ++t) p[t] = rounded[t] = 0;
  for (uint32_t t = seen.end; t < end; ++t) p[t] = rounded[t] = 0;
  total = V::zero();
  for (uint32_t t = 0; t < end; t += kLanes)
    total = V::add(total, kRounds ? V::load_bf16(reinterpret_cast<const std::byte*>(rounded + t))
                                  : V::load(p + t));
  return total;
}

// Of queries from `first` on, up to kLanes.
template <bool kRounds>
void find_shares(const PairValues& job, uint32_t first, uint32_t count, PairShares& out) {
  Attention* const states = job.states + first;
  float* const scores = job.scores + size_t{first} * kTile;
  V lanes[kLanes];
  float most[kLanes] = {}, before[kLanes] = {}, totals[kLanes];
  for (uint32_t i = 0; i < kLanes; ++i) lanes[i] = V::zero();
  for (uint32_t r = 0; r < count; ++r) {
    lanes[r] = hide_scores(scores + r * kTile, job.seen[first + r], job.cap);
    before[r] = states[r].most;
  }
  mosts_of(lanes, count, most);
  const V old = V::load(before), now = V::greater_of(V::load(most), old);
  exponential(V::sub(old, now)).store(out.keep);
  now.store(most);
  for (uint32_t r = 0; r < count; ++r)
    lanes[r] = shares_of<kRounds>(scores + r * kTile, job.seen[first + r], most[r],
                                  out.rounded + r * kTile);
  sums_of(lanes, count, totals);
  for (uint32_t r = 0; r < count; ++r) {
    states[r].most = most[r];
    states[r].total = __builtin_fmaf(states[r].total, out.keep[r], totals[r]);
  }
}

// Values of what each query sees, by its shares: numbers behind that may be infinite.
struct PairValueRows {
  struct Pairs {  // whole ones [begin, end), and maybe half of the ones beside them
    uint32_t begin, end;
    bool before, behind;
  };
  const PairValues& job;
  uint32_t first;  // query of the shares' first
  PairShares& shares;

  Pairs pairs_of(uint32_t row) const {
    const SeenKeys seen = job.seen[first + row];
    const uint32_t end = seen.end == job.positions ? seen.end + seen.end % 2 : seen.end;
    return {(seen.begin + 1) / 2, end / 2, seen.begin % 2 != 0, end % 2 != 0};
  }
  template <uint32_t kRows, uint32_t kWide>
  void whole(uint32_t row, uint32_t begin, uint32_t end, float* keep, uint32_t d) {
    if (begin >= end) return;
    if (const PairRows& r = job.value_rows; r.rows != nullptr)
      mix_rows<kRows, kWide>(shares.rounded + row * kTile + size_t{2} * begin,
                             {r.rows + size_t{2} * begin, r.ahead + size_t{2} * begin}, end - begin,
                             keep, d, job.states + first + row);
    else
      mix_tile<kRows, kWide>({shares.rounded + row * kTile + size_t{2} * begin, kTile,
                              job.values + (size_t{begin} * job.wide + d) * 4, size_t{job.wide} * 4,
                              4 * kLanes, end - begin},
                             keep, d, job.states + first + row);
    for (uint32_t r = 0; r < kRows; ++r) keep[r] = 1;
  }
  // The number of a pair that `mask` leaves.
  template <uint32_t kWide>
  void half(uint32_t row, uint32_t pair, uint32_t mask, float* keep, uint32_t d) {
    uint32_t words[kWide * kLanes];
    auto* const bytes = reinterpret_cast<std::byte*>(words);
    if (const PairRows& r = job.value_rows; r.rows != nullptr)
      pair_values<kWide>(r.rows + size_t{2} * pair, d, bytes);
    else
      __builtin_memcpy(bytes, job.values + (size_t{pair} * job.wide + d) * 4, sizeof words);
    for (uint32_t& word : words) word &= mask;
    mix_tile<1, kWide>({shares.rounded + row * kTile + size_t{2} * pair, kTile,
                        reinterpret_cast<const std::byte*>(words), 0, 4 * kLanes, 1},
                       keep, d, job.states + first + row);
    *keep = 1;
  }
  // kWide vectors of columns. What all rows see is added to them together.
  template <uint32_t kRows, uint32_t kWide>
  void columns(uint32_t row, uint32_t d) {
    float keep[kRows];
    Pairs own[kRows];
    uint32_t begin = 0, end = kTile / 2;
    for (uint32_t r = 0; r < kRows; ++r) {
      keep[r] = shares.keep[row + r];
      own[r] = pairs_of(row + r);
      begin = own[r].begin > begin ? own[r].begin : begin;
      end = own[r].end < end ? own[r].end : end;
    }
    if (begin >= end) begin = end = kTile / 2;  // nothing
    for (uint32_t r = 0; r < kRows; ++r) {
      if (own[r].before) half<kWide>(row + r, own[r].begin - 1, 0xFFFF0000, keep + r, d);
      const uint32_t to = own[r].end < begin ? own[r].end : begin;
      whole<1, kWide>(row + r, own[r].begin, to, keep + r, d);
    }
    whole<kRows, kWide>(row, begin, end, keep, d);
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t from = own[r].begin > end ? own[r].begin : end;
      whole<1, kWide>(row + r, from, own[r].end, keep + r, d);
      if (own[r].behind) half<kWide>(row + r, own[r].end, 0x0000FFFF, keep + r, d);
    }
  }
  // A row's shares times the scales; what is beside what it sees is 0, whatever its scale.
  void round(uint32_t row, const float* scales) {
    const SeenKeys seen = job.seen[first + row];
    const float* const p = job.scores + size_t{first + row} * kTile;
    uint16_t* const out = shares.rounded + row * kTile;
    for (uint32_t t = 0; t < to_lanes(seen.end); t += kLanes)
      V::mul(V::load(p + t), V::load(scales + t)).store_share(out + t);
    if (seen.begin % 2 != 0) out[seen.begin - 1] = 0;
    if (seen.end % 2 != 0) out[seen.end] = 0;
  }
  template <uint32_t kRows>
  void rows(uint32_t row) {
    uint32_t d = 0;
    if (job.scales == nullptr)
      for (; d + kVectors * kLanes <= job.wide; d += kVectors * kLanes)
        columns<kRows, kVectors>(row, d);
    for (; d < job.wide; d += 2 * kLanes) {
      for (uint32_t r = 0; job.scales != nullptr && r < kRows; ++r)
        round(row + r, job.scales + d / (2 * kLanes) * kTile);
      columns<kRows, 2>(row, d);
    }
  }
};

void add_pair_values(const PairValues& job) {
  PairShares shares;
  for (uint32_t first = 0; first < job.count; first += kLanes) {
    const uint32_t count = job.count - first < kLanes ? job.count - first : kLanes;
    if (job.scales == nullptr)
      find_shares<true>(job, first, count, shares);
    else
      find_shares<false>(job, first, count, shares);
    PairValueRows some{job, first, shares};
    in_rows<kQueries>(0, count, some);
  }
}

// Words of 32 bits of rows, of each 16 rows as [word][row].
void turn_words(const std::byte* const* rows, uint32_t count, uint32_t words, uint32_t flip,
                std::byte* out, size_t panel_bytes, const std::byte* const* ahead) {
  for (uint32_t first = 0; first < count; first += kLanes, out += panel_bytes)
    for (uint32_t word = 0; word < words; word += kLanes) {
      const uint32_t n = words - word < kLanes ? words - word : kLanes;
      for (uint32_t i = 0; i < kLanes; ++i)
        __builtin_prefetch(ahead[first + i] + size_t{word} * 4, 0, 2);
      V::turn(rows + first, size_t{word} * 4, n, flip, out + size_t{word} * 64);
    }
}

// Two rows' numbers side by side, as pairs of bf16.
void pair_rows(bool integers, const std::byte* const* rows, uint32_t count, uint32_t n,
               std::byte* out, const std::byte* const* ahead) {
  for (uint32_t t = 0; t < count; t += 2)
    for (uint32_t i = 0; i < n; i += 2 * kLanes, out += 8 * kLanes) {
      const size_t at = size_t{i} * (integers ? 1 : 2);
      __builtin_prefetch(ahead[t] + at, 0, 2);
      __builtin_prefetch(ahead[t + 1] + at, 0, 2);
      if (!integers) {
        V::pair_bf16(rows[t] + at, rows[t + 1] + at, out);
        continue;
      }
      for (uint32_t half = 0; half < 2 * kLanes; half += kLanes)
        V::pair_integers(rows[t] + at + half, rows[t + 1] + at + half)
            .store(reinterpret_cast<float*>(out + size_t{4} * half));
    }
}
