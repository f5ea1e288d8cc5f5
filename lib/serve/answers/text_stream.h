// Turns an answer's tokens into text as they come.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/tokenizer.h"

namespace mc::serve {

// A stream of tokens as valid UTF-8, ended early by stop strings. Text that may be the start of a
// stop string, or of a character, is held back until it is decided.
class TextStream {
 public:
  // `tokenizer` outlives it. `begins_text`: nothing but the beginning token is before the answer,
  // so the space that tokenizers put before a text is taken off. `shown`: special tokens that are
  // part of the text, as they are written in the vocabulary. `min_tokens`: a stop string that ends
  // within so many tokens is text.
  TextStream(const model::Tokenizer& tokenizer, std::vector<std::string> stops,
             bool begins_text = false, std::span<const std::string_view> shown = {},
             uint32_t min_tokens = 0)
      : tokenizer_(tokenizer),
        stops_(std::move(stops)),
        shown_(shown),
        min_tokens_(min_tokens),
        drop_space_(begins_text && tokenizer.adds_space()) {}
  // The text that can be shown after this token. After a stop string everything is empty.
  std::string push(int32_t token);
  std::string flush();  // what was held back; the last of the text
  bool stopped() const { return stopped_; }
  const std::string& stopped_by() const { return stopped_by_; }  // the stop string

 private:
  std::string release(bool all);
  const model::Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::span<const std::string_view> shown_;
  uint32_t min_tokens_, pushed_ = 0;  // tokens
  bool drop_space_;
  std::string held_;   // text not yet shown
  size_t early_ = 0;   // leading bytes of it, within which no stop string ends
  std::string bytes_;  // of a character that is not complete
  bool stopped_ = false;
  std::string stopped_by_;
};

}  // namespace mc::serve
