// Chooses a request's next token from the logits that a model gave, and says how likely it was.
//
// Thread: any. Pure.
#pragma once
#include <cstdint>
#include <span>

#include "serve/engine/engine.h"

namespace mc::serve {

// `logits`: after the last token of the item's sequence, overwritten. `ends`: tokens that end an
// answer.
// With `item.mask`, it is one of those that may come: before biases, penalties and temperature.
// With `item.logprobs`, what the logits were before all that is written there.
int32_t next_token(std::span<float> logits, const DecodeItem& item, std::span<const int32_t> ends);

// Of `token` and the `top` likeliest. Requires: a token of the row.
TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, size_t top);

}  // namespace mc::serve
