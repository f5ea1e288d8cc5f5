// Text to tokens and back where a model has no tokenizer: bytes are the tokens 0 to 255; tokens
// beyond are shown as made-up words, each id its own, so that equal text means equal tokens.
//
// Thread: values. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mc::serve {

std::vector<int32_t> text_tokens(std::string_view text);

// A stream of tokens as valid UTF-8, ended early by stop strings. Text that may be the start of a
// stop string, or of a character, is held back until it is decided.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  // The text that can be shown after this token. After a stop string everything is empty.
  std::string push(int32_t token);
  std::string flush();  // what was held back; the last of the text
  bool stopped() const { return stopped_; }

 private:
  std::string release(bool all);
  std::vector<std::string> stops_;
  std::string held_;   // text not yet shown
  std::string bytes_;  // of a character that is not complete
  bool stopped_ = false;
};

}  // namespace mc::serve
