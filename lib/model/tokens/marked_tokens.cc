#include "model/tokens/marked_tokens.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "model/tokens/regex.h"
#include "model/tokens/unicode.h"

namespace mc::model {
namespace {

// Whether the text is one character of a word: a letter, mark, decimal digit, connector or joiner.
bool of_word(std::string_view character) {
  static const Regex word = [] {
    auto made = Regex::compile_native(R"(\A[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])");
    MC_CHECK(made.has_value());
    return std::move(*made);
  }();
  return valid_prefix(character) == character.size() && word.find(character, 0).found;
}

bool touches_word(std::string_view before, std::string_view after) {
  if (!before.empty() && of_word(before.substr(before.size() - last_character(before).size)))
    return true;
  return !after.empty() && of_word(after.substr(0, first_character(after).size));
}

}  // namespace

void MarkedTokens::add(Mark mark) {
  if (mark.text.empty() || by_text_.find(mark.text) >= 0) return;
  by_text_.add(mark.text, static_cast<int32_t>(marks_.size()));
  std::vector<size_t>& sizes = sizes_[static_cast<unsigned char>(mark.text[0])];
  const auto place = std::lower_bound(sizes.begin(), sizes.end(), mark.text.size(), std::greater());
  if (place == sizes.end() || *place != mark.text.size()) sizes.insert(place, mark.text.size());
  marks_.push_back(std::move(mark));
}

const MarkedTokens::Mark* MarkedTokens::at(std::string_view text) const {
  for (const size_t size : sizes_[static_cast<unsigned char>(text[0])]) {
    if (size > text.size()) continue;
    const int32_t found = by_text_.find(text.substr(0, size));
    if (found >= 0) return &marks_[static_cast<size_t>(found)];
  }
  return nullptr;
}

MarkedTokens::Found MarkedTokens::next(std::string_view text, size_t from, bool specials) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (sizes_[static_cast<unsigned char>(text[i])].empty()) continue;
    const Mark* const mark = at(text.substr(i));
    if (mark == nullptr) continue;
    Found found{i, i + mark->text.size(), mark->token};
    if ((mark->special && !specials) ||
        (mark->single_word && touches_word(text.substr(0, i), text.substr(found.end)))) {
      i = found.end - 1;
      continue;
    }
    while (mark->takes_left && found.begin > from) {
      const Character c = last_character(text.substr(from, found.begin - from));
      if (!is_white_space(c.code)) break;
      found.begin -= c.size;
    }
    while (mark->takes_right && found.end < text.size()) {
      const Character c = first_character(text.substr(found.end));
      if (!is_white_space(c.code)) break;
      found.end += c.size;
    }
    return found;
  }
  return {};
}

}  // namespace mc::model
