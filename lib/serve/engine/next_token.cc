#include "serve/engine/next_token.h"

#include <algorithm>
#include <limits>

#include "model/forward/sampler.h"

namespace mc::serve {
namespace {

constexpr double kLeast = -9999;  // JSON has no infinity
constexpr float kNever = -std::numeric_limits<float>::infinity();

void keep_allowed(std::span<float> logits, std::span<const uint64_t> allowed) {
  for (size_t word = 0; word * 64 < logits.size(); ++word) {
    const uint64_t bits = word < allowed.size() ? allowed[word] : 0;
    if (bits == ~uint64_t{0}) continue;
    const size_t end = std::min<size_t>(logits.size(), word * 64 + 64);
    for (size_t i = word * 64; i < end; ++i)
      if ((bits >> i % 64 & 1) == 0) logits[i] = kNever;
  }
}

}  // namespace

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, size_t top) {
  const double all = model::log_sum(logits);
  const auto of = [&](int32_t id) {
    const double p = logits[static_cast<size_t>(id)] - all;
    return p >= kLeast ? p : kLeast;  // not a number: neither
  };
  TokenLogprobs said;
  said.logprob = of(token);
  if (top > 0) said.top = model::likeliest(logits, top);
  for (const int32_t id : said.top) said.top_logprobs.push_back(of(id));
  return said;
}

int32_t next_token(std::span<float> logits, const DecodeItem& item, std::span<const int32_t> ends) {
  const Sampling& s = item.sampling;
  const std::span<const int32_t> tokens = item.sequence.tokens;
  const size_t prompt = std::min(s.prompt, tokens.size());
  if (item.tells()) {
    const std::vector<float> raw(logits.begin(), logits.end());
    DecodeItem chosen = item;
    chosen.logprobs = nullptr;
    const int32_t token = next_token(logits, chosen, ends);
    *item.logprobs = logprobs_of(raw, token, s.logprobs - 1);
    return token;
  }
  const TokenMask::Allowed allowed =
      item.mask != nullptr ? item.mask->wait() : TokenMask::Allowed();
  if (!allowed.tokens.empty()) keep_allowed(logits, allowed.tokens);
  model::add_bias(logits, s.bias);
  model::penalize(logits, s.penalties, tokens.first(prompt), tokens.subspan(prompt));
  for (const int32_t id : s.held)
    if (id >= 0 && static_cast<size_t>(id) < logits.size())
      logits[static_cast<size_t>(id)] = kNever;
  model::Draw draw{s.temperature, s.top_k, s.top_p, s.seed, tokens.size(), {}, s.min_p};
  if (!s.eos_allowed && !s.ignore_eos && !allowed.end_only) draw.never = ends;
  return model::sample(logits, draw);
}

}  // namespace mc::serve
