#include "serve/engine/next_token.h"

#include <algorithm>

#include "model/forward/sampler.h"

namespace mc::serve {

int32_t next_token(std::span<float> logits, const DecodeItem& item, std::span<const int32_t> ends) {
  const Sampling& s = item.sampling;
  const std::span<const int32_t> tokens = item.sequence.tokens;
  const size_t prompt = std::min(s.prompt, tokens.size());
  model::add_bias(logits, s.bias);
  model::penalize(logits, s.penalties, tokens.first(prompt), tokens.subspan(prompt));
  model::Draw draw{s.temperature, s.top_k, s.top_p, s.seed, tokens.size(), {}, s.min_p};
  if (!s.eos_allowed && !s.ignore_eos) draw.never = ends;
  return model::sample(logits, draw);
}

}  // namespace mc::serve
