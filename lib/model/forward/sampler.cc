#include "model/forward/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace mc::model {
namespace {

struct Candidate {
  uint64_t rank = 0;
  uint64_t share = 0;
  int32_t id() const { return static_cast<int32_t>(~static_cast<uint32_t>(rank)); }
};
// The greater the likelier; among equals the lower id's is greater. Any bits have one.
uint64_t rank_of(float logit, uint32_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit == 0 ? 0.0f : logit);
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | ~id;
}
bool before(const Candidate& a, const Candidate& b) { return a.rank > b.rank; }

// As the layers' kernels have it (kernels_body.h), so that no library decides what is drawn.
float exponential(float x) {
  x = x > -87.0f ? x : -87.0f;
  const float n = std::rint(x * 1.44269504088896341f);
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  for (const float c :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = std::fma(p, r, c);
  return std::ldexp(std::fma(r * r, p, r + 1.0f), static_cast<int>(n));
}

uint64_t share_of(float logit, double top, double temperature) {
  const auto x = static_cast<float>((logit - top) / temperature);
  return x < -28.0f ? 0 : static_cast<uint64_t>(exponential(x) * 0x1p40f);
}

// The first of the greatest; 0: there are no numbers at all. Chains of comparisons side by side do
// not wait for each other, and only the part that has the greatest is looked through again.
size_t likeliest_of(std::span<const float> logits) {
  constexpr size_t kChains = 8, kPart = 64 * kChains;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float greatest = kNone;
  size_t part = 0;
  for (size_t at = 0; at < logits.size(); at += kPart) {
    const auto some = logits.subspan(at, std::min(kPart, logits.size() - at));
    float most[kChains];
    std::fill_n(most, kChains, kNone);
    size_t i = 0;
    for (; i + kChains <= some.size(); i += kChains)
      for (size_t c = 0; c < kChains; ++c) most[c] = std::max(most[c], some[i + c]);
    for (; i < some.size(); ++i) most[0] = std::max(most[0], some[i]);
    const float here = *std::max_element(most, most + kChains);
    if (here <= greatest) continue;
    greatest = here;
    part = at;
  }
  const auto from = logits.begin() + static_cast<std::ptrdiff_t>(part);
  const auto at = std::find(from, logits.end(), greatest);
  return at == logits.end() ? 0 : static_cast<size_t>(at - logits.begin());
}

uint64_t total_of(std::span<const Candidate> some) {
  uint64_t total = 0;
  for (const Candidate& c : some) total += c.share;
  return total;
}

// How many of the first have a share of `wanted` together, which all have; puts them first.
size_t fewest_with(std::span<Candidate> all, uint64_t wanted) {
  size_t begin = 0, end = all.size();
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(&all[begin], &all[middle], all.data() + end, before);
    const uint64_t here = total_of(all.subspan(begin, middle - begin));
    if (here >= wanted) {
      end = middle;
    } else {
      wanted -= here;
      begin = middle;
    }
  }
  return end;
}

}  // namespace

uint64_t Draw::bits() const { return mix64(seed + mix64(position)); }

int32_t sample(std::span<float> logits, const Draw& draw) {
  for (const int32_t id : draw.never)
    if (id >= 0 && static_cast<size_t>(id) < logits.size())
      logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  const size_t likeliest = likeliest_of(logits);
  const auto first = static_cast<int32_t>(likeliest);
  if (draw.greedy()) return first;
  std::vector<Candidate> kept;
  kept.reserve(logits.size());
  // The likeliest has 2^40.
  const auto least = static_cast<uint64_t>(std::ceil(std::clamp(draw.min_p, 0.0, 1.0) * 0x1p40));
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t share = share_of(logits[i], double{logits[likeliest]}, draw.temperature);
    if (share >= least) kept.push_back({rank_of(logits[i], static_cast<uint32_t>(i)), share});
  }
  if (draw.top_k > 0 && draw.top_k < kept.size()) {
    const auto end = kept.begin() + static_cast<std::ptrdiff_t>(draw.top_k);
    std::nth_element(kept.begin(), end, kept.end(), before);
    kept.erase(end, kept.end());
  }
  if (draw.top_p < 1) {
    const double part = std::max(draw.top_p, 0.0) * static_cast<double>(total_of(kept));
    kept.resize(fewest_with(kept, std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(part)))));
  }
  // In the order of ids, as a device adds them, whatever selected them.
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id() < b.id(); };
  if (kept.size() < logits.size() || draw.top_p < 1) std::sort(kept.begin(), kept.end(), by_id);
  __extension__ using Wide = unsigned __int128;
  const auto scaled = static_cast<Wide>(draw.bits()) * total_of(kept);
  auto left = static_cast<uint64_t>(scaled >> 64);
  for (const Candidate& c : kept) {
    if (left < c.share) return c.id();
    left -= c.share;
  }
  return first;  // no numbers to draw from
}

}  // namespace mc::model
