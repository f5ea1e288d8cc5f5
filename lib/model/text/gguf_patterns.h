// How a GGUF file's byte-level tokenizer cuts a text, by its name in `tokenizer.ggml.pre`.
//
// Errors: kUnsupported for a name that is not known. Thread: any. Source: the patterns of the
// models' published tokenizers; the names of the GGUF converters.
#pragma once
#include <span>
#include <string_view>

#include "base/result.h"

namespace mc::model {

struct GgufPatterns {
  std::span<const std::string_view> patterns;  // one after the other, each isolating its matches
  bool whole_words = false;  // a piece that is in the vocabulary is that token, without merges
  bool begins = false;       // a text begins with a token for that, where the file does not say
};
Result<GgufPatterns> gguf_patterns(std::string_view pre);

}  // namespace mc::model
