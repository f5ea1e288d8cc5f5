#include "serve/answers/text_stream.h"

#include <algorithm>

#include "model/tokens/text.h"

namespace mc::serve {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Moves whole characters from `bytes` to `text`; what can never become one is replaced.
void take_characters(std::string& bytes, std::string& text) {
  std::string_view left = bytes;
  while (!left.empty()) {
    const auto first = model::leading_bytes(left);
    if (first.cut) break;  // more may come
    text += first.whole ? left.substr(0, first.size) : kReplacement;
    left.remove_prefix(first.size);
  }
  bytes.erase(0, bytes.size() - left.size());
}

}  // namespace

std::string TextStream::push(int32_t token) {
  if (stopped_) return {};
  std::string_view bytes = tokenizer_.bytes(token);
  // In a prompt it is a byte; in an answer its end.
  if (tokenizer_.style() == model::Tokenizer::Style::kBytes && tokenizer_.special(token))
    bytes = {};
  if (bytes.empty() && !shown_.empty() &&
      std::find(shown_.begin(), shown_.end(), tokenizer_.piece(token)) != shown_.end())
    bytes = tokenizer_.piece(token);
  if (drop_space_ && bytes.starts_with(' ')) bytes.remove_prefix(1);
  drop_space_ = tokenizer_.adds_space() && token == tokenizer_.bos();  // a new text begins
  bytes_ += bytes;
  take_characters(bytes_, held_);
  if (pushed_ < min_tokens_) {
    ++pushed_;
    early_ = held_.size();
  }
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
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop, early_ + 1 - std::min(early_ + 1, stop.size()));
    if (at < end) stopped_by_ = stop;
    end = std::min(end, at);
  }
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
  early_ -= std::min(early_, out.size());
  return out;
}

}  // namespace mc::serve
