// The next token of each row, greedy or drawn: model/forward/sampler.h's, bit for bit. Shares are
// whole numbers, so their sums are the same in any order.
//
// A group reads its row a few times from end to end, each warp a part of it that lies together: for
// the likeliest token, for the sum of the shares, and twice for each of top_k and top_p. What these
// leave is all tokens of a rank or above. A histogram finds it: it says in which bin the rank lies,
// and the tokens of that bin are sorted. Tokens too unlikely to have a share stay out of all this.
#include "device/kernels/group_sums.h"

namespace {

constexpr uint32_t kSampling = MC_SAMPLE_THREADS;
constexpr uint32_t kBins = 2048;
constexpr uint32_t kSortable = 2048;  // ranks

using Sums = Own<uint64_t, 1, kSampling>;

// The greater the likelier; among equals the lower id's is greater. Any bits have one.
MC_DEVICE uint64_t rank_of(float logit, uint32_t id) {
  const uint32_t bits = bits_of(logit == 0.0f ? 0.0f : logit);
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(order) << 32 | static_cast<uint32_t>(~id);
}
MC_DEVICE float logit_of(uint64_t rank) {
  const auto order = static_cast<uint32_t>(rank >> 32);
  return from_bits((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}
MC_DEVICE uint32_t id_of(uint64_t rank) { return ~static_cast<uint32_t>(rank); }

// A row of logits as vectors of aligned memory. The first begins `pad` numbers before the row.
// `ends` never come.
struct Scores {
  const float* logits;
  uint32_t vocab;
  const int32_t* ends;
  uint32_t ends_count;
  uint32_t pad, vectors, part;  // `part` vectors are a warp's

  MC_DEVICE Scores(const float* row, uint32_t n, const int32_t* never, uint32_t count)
      : logits(row),
        vocab(n),
        ends(never),
        ends_count(count),
        pad(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row) / sizeof(float) % 4)),
        vectors((n + pad + 3) / 4),
        part((vectors + kSampling / kWarp - 1) / (kSampling / kWarp)) {}
  MC_DEVICE float at(uint32_t id) const {
    for (uint32_t e = 0; e < ends_count; ++e)
      if (ends[e] == static_cast<int32_t>(id)) return -INFINITY;
    return logits[id];
  }
  MC_DEVICE uint32_t id(uint32_t vector) const { return 4 * vector - pad; }  // may wrap around
  // Whatever where the row has nothing.
  MC_DEVICE Four four(uint32_t vector) const {
    const uint32_t first = id(vector);
    Four x = {};
    if (first < vocab && vocab - first >= 4) {
      x = load_four(logits + first);
    } else {
      MC_UNROLL
      for (uint32_t i = 0; i < 4; ++i)
        if (first + i < vocab) x.of[i] = logits[first + i];
    }
    for (uint32_t e = 0; e < ends_count; ++e) {
      const uint32_t at = static_cast<uint32_t>(ends[e]) - first;
      MC_UNROLL
      for (uint32_t i = 0; i < 4; ++i) x.of[i] = at == i ? -INFINITY : x.of[i];
    }
    return x;
  }
  // f(logit, id) of thread t's tokens, by rising id; kDeep vectors are on their way at a time.
  template <uint32_t kDeep, class F>
  MC_DEVICE void each(uint32_t t, const F& f) const {
    const uint32_t end = least(vectors, (t / kWarp + 1) * part);
    for (uint32_t v = t / kWarp * part + t % kWarp; v < end; v += kDeep * kWarp) {
      Four x[kDeep];
      MC_UNROLL
      for (uint32_t d = 0; d < kDeep; ++d)
        if (v + d * kWarp < end) x[d] = four(v + d * kWarp);
      MC_UNROLL
      for (uint32_t d = 0; d < kDeep; ++d) {
        if (v + d * kWarp >= end) break;
        MC_UNROLL
        for (uint32_t i = 0; i < 4; ++i)
          if (id(v + d * kWarp) + i < vocab) f(x[d].of[i], id(v + d * kWarp) + i);
      }
    }
  }
};

// What a group shares.
struct Room {
  uint32_t low[kBins], high[kBins];  // halves of the bins' sums
  uint64_t ranks[kSortable];
  uint64_t parts[kSampling / kWarp];
  uint64_t left;
  uint32_t found, count;
};

MC_DEVICE uint64_t likeliest(const Scores& scores, Room& room) {
  Sums best;
  MC_EACH_OF(kSampling, t) {
    float most = -INFINITY;
    uint32_t whose = 0;
    scores.each<4>(t, [&](float logit, uint32_t id) {
      if (logit > most) most = logit, whose = id;
    });
    best.of(t)[0] = rank_of(most, whose);
  }
  return fold(best, room.parts, Greater());
}

// Ranks in descending order, as bins.
struct Bins {
  uint64_t first, last;  // the lowest and the highest rank
  float top, scale;      // bins of equal width in logits from `top` down; scale 0: in ranks
  uint32_t shift;

  MC_DEVICE uint32_t of(float logit, uint32_t id) const {
    if (scale == 0.0f) {  // of those that it has
      return static_cast<uint32_t>((last - rank_of(logit, id)) >> shift) & (kBins - 1);
    }
    const float x = (top - logit) * scale;
    if (x < static_cast<float>(kBins - 1)) return static_cast<uint32_t>(x);
    return logit != logit && bits_of(logit) >> 31 == 0 ? 0 : kBins - 1;
  }
  MC_DEVICE bool has(float logit, uint32_t id) const {
    return rank_of(logit, id) - first <= last - first;
  }
};

class Drawing {
 public:
  MC_DEVICE Drawing(const Scores& scores, const mc_draw& draw, float top, Room& room)
      : scores_(scores),
        draw_(draw),
        room_(room),
        top_(static_cast<double>(top)),
        inverse_(1.0 / draw.temperature),
        lowest_(0),
        scale_(static_cast<float>(kBins / (28.0 * draw.temperature))),
        cut_(static_cast<float>(top_ - 28.0 * draw.temperature)) {
    if (!(inverse_ < 1e308)) inverse_ = 1e308;
    if (!(scale_ < 1e30f)) scale_ = 1e30f;
    if (!(scale_ > 1e-30f)) scale_ = 1e-30f;
  }

  // Leaves the likeliest top_k tokens.
  MC_DEVICE void keep(bool shares) {
    Bins bins = {lowest_, ~uint64_t{0}, static_cast<float>(top_), scale_, 0};
    uint64_t point = 0;
    for (bool first = true;; first = false) {
      fill(bins, shares);
      Sums mine, before;
      const auto weight = [&](uint32_t bin) {
        return static_cast<uint64_t>(room_.high[bin]) << 32 | room_.low[bin];
      };
      const uint64_t total = add_up(kBins, weight, mine, before);
      if (first) point = shares ? wanted(total) : draw_.top_k - 1;
      if (point >= total) return;  // all are left
      find(kBins, weight, mine, before, point);
      point = room_.left;
      if (collect(bins, room_.found)) break;
    }
    sort();
    const auto weight = [&](uint32_t i) {
      return shares ? share(logit_of(room_.ranks[i])) : uint64_t{1};
    };
    Sums mine, before;
    (void)add_up(room_.count, weight, mine, before);
    find(room_.count, weight, mine, before, point);
    lowest_ = room_.ranks[room_.found];
    cut_ = logit_of(lowest_) > cut_ ? logit_of(lowest_) : cut_;
  }
  // Of the tokens that are left, in the order of ids. `otherwise`: none has a share.
  MC_DEVICE uint32_t pick(uint32_t otherwise) {
    Sums mine, before;
    MC_EACH_OF(kSampling, t) {
      uint64_t sum = 0;
      scores_.each<2>(t, [&](float logit, uint32_t id) { sum += kept_share(logit, id); });
      mine.of(t)[0] = sum;
    }
    const uint64_t total = fold(mine, room_.parts, Add());
    if (total == 0) return otherwise;
    uint64_t point = high_product(draw_.bits, total);
    uint32_t warp = 0;
    for (; point >= room_.parts[warp]; ++warp) point -= room_.parts[warp];
    const uint32_t begin = warp == 0 ? 0 : scores_.id(warp * scores_.part);
    const uint32_t end = least(scores_.vocab, scores_.id((warp + 1) * scores_.part));
    const auto weight = [&](uint32_t i) { return kept_share(scores_.at(begin + i), begin + i); };
    (void)add_up(end - begin, weight, mine, before);
    find(end - begin, weight, mine, before, point);
    return begin + room_.found;
  }

 private:
  // float((logit - top) / temperature), of doubles. Multiplying is faster, and the same unless the
  // product is so near the middle of two floats that the quotient may be on the other side.
  MC_DEVICE float exponent(float logit) const {
    const double from_top = static_cast<double>(logit) - top_;
    const double product = from_top * inverse_;
    const uint32_t below_float = low_bits_of(product) & 0x1fffffffu;
    if (below_float - 0x0ffffff0u <= 0x20u) return static_cast<float>(from_top / draw_.temperature);
    return static_cast<float>(product);
  }
  MC_DEVICE uint64_t share(float logit) const {
    const float x = exponent(logit);
    return x < -28.0f ? 0 : static_cast<uint64_t>(exponential(x) * 1099511627776.0f);  // 2^40
  }
  MC_DEVICE uint64_t kept_share(float logit, uint32_t id) const {
    if (logit < cut_ || (lowest_ != 0 && rank_of(logit, id) < lowest_)) return 0;
    return share(logit);
  }
  // Of `total`: the last of the shares that top_p asks for.
  MC_DEVICE uint64_t wanted(uint64_t total) const {
    const double part = (draw_.top_p > 0 ? draw_.top_p : 0) * static_cast<double>(total);
    const auto wanted = static_cast<uint64_t>(ceil(part));
    return (wanted > total ? total : wanted > 0 ? wanted : 1) - 1;
  }
  // How much, as shares or as tokens, is in each bin.
  MC_DEVICE void fill(const Bins& bins, bool shares) const {
    barrier();
    MC_EACH_OF(kSampling, t) {
      for (uint32_t bin = t; bin < kBins; bin += kSampling) room_.low[bin] = room_.high[bin] = 0;
    }
    barrier();
    const bool all = bins.first == 0 && bins.last == ~uint64_t{0};
    MC_EACH_OF(kSampling, t) {
      scores_.each<2>(t, [&](float logit, uint32_t id) {
        if (logit < cut_ || !(all || bins.has(logit, id))) return;
        const uint64_t n = shares ? share(logit) : 1;
        const auto low = static_cast<uint32_t>(n);
        const uint32_t bin = bins.of(logit, id);
        const uint32_t carry = add_together(room_.low[bin], low) + low < low ? 1 : 0;
        const uint32_t high = static_cast<uint32_t>(n >> 32) + carry;
        if (high != 0) add_together(room_.high[bin], high);
      });
    }
    barrier();
  }
  // The ranks in a bin; if they are too many to be sorted, bins of that bin instead.
  MC_DEVICE bool collect(Bins& bins, uint32_t bin) const {
    MC_EACH_OF(kSampling, t) {
      if (t == 0) room_.count = 0;
    }
    barrier();
    Sums least_rank, most_rank;
    MC_EACH_OF(kSampling, t) {
      uint64_t low = ~uint64_t{0}, high = 0;
      scores_.each<2>(t, [&](float logit, uint32_t id) {
        if (logit < cut_ || bins.of(logit, id) != bin || !bins.has(logit, id)) return;
        const uint64_t rank = rank_of(logit, id);
        const uint32_t at = add_together(room_.count, 1);
        if (at < kSortable) room_.ranks[at] = rank;
        low = Lesser()(low, rank);
        high = Greater()(high, rank);
      });
      least_rank.of(t)[0] = low;
      most_rank.of(t)[0] = high;
    }
    barrier();
    if (room_.count <= kSortable) return true;
    bins = {fold(least_rank, room_.parts, Lesser()), fold(most_rank, room_.parts, Greater()), 0, 0,
            0};
    while ((bins.last - bins.first) >> bins.shift >= kBins) ++bins.shift;
    return false;
  }
  // The collected ranks, the highest first (bitonic).
  MC_DEVICE void sort() const {
    uint32_t n = 2;
    while (n < room_.count) n *= 2;
    MC_EACH_OF(kSampling, t) {
      for (uint32_t i = room_.count + t; i < n; i += kSampling) room_.ranks[i] = 0;
    }
    for (uint32_t run = 2; run <= n; run *= 2)
      for (uint32_t far = run / 2; far > 0; far /= 2) {
        barrier();
        MC_EACH_OF(kSampling, t) {
          for (uint32_t i = t; i < n / 2; i += kSampling) {
            const uint32_t at = 2 * i - (i & (far - 1));
            const uint64_t a = room_.ranks[at], b = room_.ranks[at + far];
            if ((a < b) != ((at & run) == 0)) continue;
            room_.ranks[at] = b;
            room_.ranks[at + far] = a;
          }
        }
      }
    barrier();
  }
  // n weights: each thread's part of them, and what is before it. Returns their sum.
  template <class W>
  MC_DEVICE uint64_t add_up(uint32_t n, const W& weight, Sums& mine, Sums& before) const {
    const uint32_t each = (n + kSampling - 1) / kSampling;
    MC_EACH_OF(kSampling, t) {
      uint64_t sum = 0;
      for (uint32_t i = t * each; i < least(n, (t + 1) * each); ++i) sum += weight(i);
      mine.of(t)[0] = sum;
    }
    return sums_before(mine, before, room_.parts);
  }
  // In whose weight the point lies, which is less than their sum; `left` of it.
  template <class W>
  MC_DEVICE void find(uint32_t n, const W& weight, Sums& mine, Sums& before, uint64_t point) const {
    const uint32_t each = (n + kSampling - 1) / kSampling;
    MC_EACH_OF(kSampling, t) {
      if (point - before.of(t)[0] < mine.of(t)[0]) {  // wraps around before it
        uint64_t left = point - before.of(t)[0];
        uint32_t i = t * each;
        for (uint64_t here; left >= (here = weight(i)); ++i) left -= here;
        room_.found = i;
        room_.left = left;
      }
    }
    barrier();
  }

  const Scores& scores_;
  const mc_draw& draw_;
  Room& room_;
  double top_, inverse_;
  uint64_t lowest_;  // rank of those that are left
  float scale_;
  float cut_;  // what is less has no share
};

MC_DEVICE void sample(const Scores& scores, const mc_draw& draw, int32_t* token) {
  MC_SHARED Room room;
  const uint64_t best = likeliest(scores, room);
  const float top = logit_of(best);
  uint32_t chosen = id_of(best);
  // Without a greatest number, no token has a share.
  if (draw.temperature > 0 && draw.top_k != 1 && top > -INFINITY && top < INFINITY) {
    Drawing drawing(scores, draw, top, room);
    for (uint32_t shares = 0; shares < 2; ++shares)
      if (shares != 0 ? draw.top_p < 1 : draw.top_k > 0 && draw.top_k < scores.vocab)
        drawing.keep(shares != 0);
    chosen = drawing.pick(chosen);
  }
  MC_EACH_OF(kSampling, t) {
    if (t == 0) *token = static_cast<int32_t>(chosen);
  }
}

}  // namespace

MC_GLOBAL_OF(MC_SAMPLE_THREADS)
mc_sample(const float* logits, const mc_row* rows, const mc_draw* draws, const int32_t* ends,
          uint32_t ends_count, int32_t* tokens, uint32_t vocab) {
  const uint64_t row = blockIdx.x;
  const Scores scores(logits + row * vocab, vocab, ends, rows[row].masked != 0 ? ends_count : 0);
  sample(scores, draws[row], tokens + row);
}
