// Writes the log-probabilities of an answer's tokens as OpenAI has them, for chats and for
// completions.
//
// A token's text is that of its bytes. Where these are no text by themselves, as of a part of a
// character, it is "bytes:\xe2\x82". A special token's text is how the vocabulary writes it. Where
// numbers were asked for, it is "token_id:17", as vLLM writes it.
//
// Thread: values. Source: OpenAI API reference, completions and chat.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "model/text/tokenizer.h"
#include "serve/protocol/token_logprobs.h"

namespace mc::serve {

class AnswerLogprobs {
 public:
  struct Form {
    bool chat = false;       // else of a completion
    bool token_ids = false;  // numbers for texts
  };
  // `tokenizer` outlives it. `offset`: characters before the answer in its text.
  AnswerLogprobs(const model::Tokenizer& tokenizer, Form form, uint64_t offset = 0)
      : tokenizer_(tokenizer), form_(form), offset_(offset) {}

  void add(int32_t token, TokenLogprobs logprobs);
  // Of the tokens added since the last call; an object.
  Json take();

 private:
  Json of_chat() const;
  Json of_completion();
  std::string text(int32_t token) const;

  struct Added {
    int32_t token;
    TokenLogprobs logprobs;
  };
  const model::Tokenizer& tokenizer_;
  const Form form_;
  uint64_t offset_;
  std::vector<Added> added_;
};

// Characters of a text, where each byte that is part of none counts as one.
uint64_t characters_in(std::string_view text);

}  // namespace mc::serve
