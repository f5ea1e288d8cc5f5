// The next token of each row, greedy or drawn: model/forward/sampler.h's, bit for bit. Shares are
// whole numbers, so their sums are the same in any order. What top_k and top_p leave is all tokens
// of a rank or above, which is found a byte at a time (radix select): how much is in the tokens of
// each value of the byte, then the next byte among those of one value.
#include "device/kernels/group.h"

namespace {

struct Best {
  float value;
  int32_t token;
};
MC_DEVICE bool better(Best a, Best b) {
  return a.value > b.value || (a.value == b.value && a.token < b.token);
}

// A row of logits; `ends` never come.
struct Scores {
  const float* logits;
  uint32_t vocab;
  const int32_t* ends;
  uint32_t ends_count;
  MC_DEVICE float at(uint32_t i) const {
    for (uint32_t e = 0; e < ends_count; ++e)
      if (ends[e] == static_cast<int32_t>(i)) return -INFINITY;
    return logits[i];
  }
};

MC_DEVICE Best likeliest(const Scores& scores, Best* best) {
  MC_EACH(t) {
    Best mine = {-INFINITY, 0};
    for (uint32_t i = t; i < scores.vocab; i += MC_KERNEL_THREADS) {
      const Best next = {scores.at(i), static_cast<int32_t>(i)};
      if (better(next, mine)) mine = next;
    }
    best[t] = mine;
  }
  for (uint32_t half = MC_KERNEL_THREADS / 2; half > 0; half /= 2) {
    barrier();
    MC_EACH(t) {
      if (t < half && better(best[t + half], best[t])) best[t] = best[t + half];
    }
  }
  barrier();
  return best[0];
}

MC_DEVICE uint64_t rank_of(float logit, uint32_t id) {
  const uint32_t bits = bits_of(logit == 0.0f ? 0.0f : logit);
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(order) << 32 | static_cast<uint32_t>(~id);
}
MC_DEVICE uint64_t share_of(float logit, double top, double temperature) {
  const float x = static_cast<float>((static_cast<double>(logit) - top) / temperature);
  return x < -28.0f ? 0 : static_cast<uint64_t>(exponential(x) * 1099511627776.0f);  // 2^40
}

constexpr uint32_t kBins = 256;

// How much the tokens have together that are of a rank or above: all of it, and, in a group's
// shared memory, each thread's part of it, of the tokens from share x t on.
struct Drawing {
  const Scores& scores;
  double top, temperature;
  uint64_t* bins;   // [kBins]
  uint64_t* parts;  // [MC_KERNEL_THREADS]

  MC_DEVICE uint32_t each() const {
    return (scores.vocab + MC_KERNEL_THREADS - 1) / MC_KERNEL_THREADS;
  }
  MC_DEVICE uint64_t share(uint32_t i, uint64_t lowest) const {
    const float logit = scores.at(i);
    return rank_of(logit, i) < lowest ? 0 : share_of(logit, top, temperature);
  }
  MC_DEVICE uint64_t total(uint64_t lowest) const {
    barrier();
    MC_EACH(t) {
      uint64_t mine = 0;
      const uint32_t end = least(scores.vocab, (t + 1) * each());
      for (uint32_t i = t * each(); i < end; ++i) mine += share(i, lowest);
      parts[t] = mine;
    }
    barrier();
    uint64_t sum = 0;
    for (uint32_t t = 0; t < MC_KERNEL_THREADS; ++t) sum += parts[t];
    return sum;
  }
  // The rank down to which tokens, of `lowest` or above, have `wanted` together: as shares, or one
  // for each token. They have it.
  MC_DEVICE uint64_t down_to(uint64_t lowest, uint64_t wanted, bool shares) const {
    uint64_t prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
      barrier();
      MC_EACH(t) {
        for (uint32_t bin = t; bin < kBins; bin += MC_KERNEL_THREADS) bins[bin] = 0;
      }
      barrier();
      MC_EACH(t) {
        for (uint32_t i = t; i < scores.vocab; i += MC_KERNEL_THREADS) {
          const float logit = scores.at(i);
          const uint64_t rank = rank_of(logit, i);
          if (rank < lowest || (shift < 56 && rank >> (shift + 8) != prefix)) continue;
          add_together(bins[rank >> shift & (kBins - 1)],
                       shares ? share_of(logit, top, temperature) : 1);
        }
      }
      barrier();
      uint32_t bin = kBins - 1;
      for (; bin > 0 && bins[bin] < wanted; --bin) wanted -= bins[bin];
      prefix = prefix << 8 | bin;
      if (bins[bin] == wanted) {  // all that are left: their last bytes do not matter
        prefix <<= shift;
        break;
      }
    }
    return prefix < lowest ? lowest : prefix;
  }
  // Whose share the point lies in, of those that total() was asked for last; in the order of ids.
  MC_DEVICE void pick(uint64_t point, uint64_t lowest, int32_t* token) const {
    uint32_t whose = 0;
    for (; whose + 1 < MC_KERNEL_THREADS && point >= parts[whose]; ++whose) point -= parts[whose];
    MC_EACH(t) {
      if (t == whose) {
        uint32_t i = t * each();
        for (uint64_t here; point >= (here = share(i, lowest)); ++i) point -= here;
        *token = static_cast<int32_t>(i);
      }
    }
  }
};

MC_DEVICE void sample(const Scores& scores, const mc_draw& draw, int32_t* token) {
  MC_SHARED Best best[MC_KERNEL_THREADS];
  MC_SHARED uint64_t bins[kBins];
  MC_SHARED uint64_t parts[MC_KERNEL_THREADS];
  const Best first = likeliest(scores, best);
  const bool greedy = !(draw.temperature > 0) || draw.top_k == 1;
  const Drawing drawing = {scores, static_cast<double>(first.value), draw.temperature, bins, parts};
  uint64_t lowest = 0;
  if (!greedy && draw.top_k > 0 && draw.top_k < scores.vocab)
    lowest = drawing.down_to(0, draw.top_k, false);
  uint64_t total = greedy ? 0 : drawing.total(lowest);
  if (total > 0 && draw.top_p < 1) {
    const double part = (draw.top_p > 0 ? draw.top_p : 0) * static_cast<double>(total);
    uint64_t wanted = static_cast<uint64_t>(ceil(part));
    wanted = wanted > total ? total : wanted > 0 ? wanted : 1;
    lowest = drawing.down_to(lowest, wanted, true);
    total = drawing.total(lowest);
  }
  if (total > 0) {
    drawing.pick(high_product(draw.bits, total), lowest, token);
  } else {
    MC_EACH(t) {
      if (t == 0) *token = first.token;
    }
  }
}

}  // namespace

MC_GLOBAL mc_sample(const float* logits, const mc_row* rows, const mc_draw* draws,
                    const int32_t* ends, uint32_t ends_count, int32_t* tokens, uint32_t vocab) {
  const uint64_t row = blockIdx.x;
  const Scores scores = {logits + row * vocab, vocab, ends, rows[row].masked != 0 ? ends_count : 0};
  sample(scores, draws[row], tokens + row);
}
