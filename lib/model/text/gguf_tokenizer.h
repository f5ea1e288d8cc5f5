// Reads the tokenizer and the chat template that a GGUF file's metadata describe.
//
// Thread: values. Errors: kInvalid, kUnsupported, naming the key.
#pragma once
#include "base/result.h"
#include "model/files/gguf.h"
#include "model/text/chat.h"
#include "model/text/tokenizer.h"

namespace mc::model {

Result<Tokenizer> gguf_tokenizer(const Gguf& file);
ChatTemplate gguf_chat(const Gguf& file);

}  // namespace mc::model
