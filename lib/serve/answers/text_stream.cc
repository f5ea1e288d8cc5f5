#include "serve/answers/text_stream.h"

#include <algorithm>

namespace mc::serve {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Length of the character a byte starts; 0: it starts none.
size_t character(unsigned char c) {
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c < 0xE0) return 2;
  if (c >= 0xE0 && c < 0xF0) return 3;
  if (c >= 0xF0 && c < 0xF5) return 4;
  return 0;
}

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The second byte rules out overlong forms, surrogates and what lies beyond U+10FFFF.
bool second_fits(unsigned char first, unsigned char second) {
  if (first == 0xE0) return second >= 0xA0;
  if (first == 0xED) return second < 0xA0;
  if (first == 0xF0) return second >= 0x90;
  if (first == 0xF4) return second < 0x90;
  return true;
}

// Moves whole characters from `bytes` to `text`; what can never become one is replaced.
void take_characters(std::string& bytes, std::string& text) {
  while (!bytes.empty()) {
    const auto first = static_cast<unsigned char>(bytes[0]);
    const size_t want = character(first);
    size_t have = 1;
    while (have < std::min(want, bytes.size()) && continues(bytes[have]) &&
           (have > 1 || second_fits(first, static_cast<unsigned char>(bytes[1]))))
      ++have;
    if (want > 0 && have == bytes.size() && have < want) return;  // more may come
    if (have == want)
      text += bytes.substr(0, have);
    else
      text += kReplacement;
    bytes.erase(0, want == 0 ? 1 : have);
  }
}

}  // namespace

std::string TextStream::push(int32_t token) {
  if (stopped_) return {};
  std::string_view bytes = tokenizer_.bytes(token);
  if (drop_space_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
  drop_space_ = tokenizer_.adds_space() && token == tokenizer_.bos();  // a new text begins
  bytes_ += bytes;
  take_characters(bytes_, held_);
  return release(false);
}

std::string TextStream::flush() {
  if (stopped_) return {};
  if (!bytes_.empty()) held_ += kReplacement;
  bytes_.clear();
  return release(true);
}

std::string TextStream::release(bool all) {
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    return held_.substr(0, end);
  }
  size_t keep = 0;  // the longest end of the text that a stop string starts with
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep && !all; --n)
      if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

}  // namespace mc::serve
