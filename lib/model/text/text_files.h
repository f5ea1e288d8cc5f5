// Reads of a model's folder what its texts need, and no weights: tokenizer and chat template. That
// is enough to route requests to external engines, whatever the model's architecture.
//
// Thread: values. Errors: kNotFound for a folder without a tokenizer; kInvalid, kUnsupported of its
// files, by name.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"

namespace mc::model {

struct TextFiles {
  std::string name;  // of the folder
  Tokenizer tokenizer;
  ChatFormat chat{};
  uint32_t vocab = 0;        // of the model, or of its tokenizer
  uint64_t context_max = 0;  // tokens
};

bool has_tokenizer(const std::string& folder);
// `max_position_embeddings` and `vocab_size` of config.json count where they are there, also of a
// model of text and pictures (`text_config`).
Result<TextFiles> open_text_files(const std::string& folder);

}  // namespace mc::model
