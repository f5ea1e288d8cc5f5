// Chooses a request's next token from the logits that a model gave.
//
// Thread: any. Pure.
#pragma once
#include <cstdint>
#include <span>

#include "serve/engine/engine.h"

namespace mc::serve {

// `logits`: after the last token of the item's sequence, overwritten. `ends`: tokens that end an
// answer.
int32_t next_token(std::span<float> logits, const DecodeItem& item, std::span<const int32_t> ends);

}  // namespace mc::serve
