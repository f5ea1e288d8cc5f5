// Reads the tokenizer and the chat template from a GGUF file's metadata.
//
// Errors: kInvalid, kUnsupported, naming the key. Thread: values.
#pragma once
#include "base/result.h"
#include "model/files/gguf.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"

namespace mc::model {

Result<Tokenizer> gguf_tokenizer(const Gguf& file);
ChatFormat gguf_chat(const Gguf& file);

}  // namespace mc::model
