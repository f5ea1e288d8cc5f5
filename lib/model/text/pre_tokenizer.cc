#include "model/text/pre_tokenizer.h"

#include <algorithm>

#include "model/text/text.h"
#include "model/text/unicode.h"

namespace mc::model {
namespace {

// Alternatives are tried in order; in all of them a letter is \p{L}, a digit \p{N}.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using enum CharClass;

bool is_newline(char32_t code) { return code == '\r' || code == '\n'; }

// Reads characters of `text` from a place on.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {}
  size_t at() const { return at_; }
  bool ends() const { return at_ == text_.size(); }
  Character next() const {
    return ends() ? Character{0, kOther, 0} : first_character(text_.substr(at_));
  }
  void skip(size_t bytes) { at_ += bytes; }
  template <class Wanted>
  size_t skip_while(const Wanted& wanted, size_t most = SIZE_MAX) {
    size_t count = 0;
    for (; count < most && !ends(); ++count) {
      const Character c = next();
      if (!wanted(c)) break;
      at_ += c.size;
    }
    return count;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

// Bytes of 's, 't, 're, 've, 'm, 'll or 'd at the start; 0: none.
size_t contraction(std::string_view text, bool any_case) {
  if (!text.starts_with('\'')) return 0;
  if (any_case && text.substr(1).starts_with("\xC5\xBF")) return 3;  // a long s
  for (const std::string_view end : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    const std::string_view found = text.substr(1, end.size());
    const auto same = [&](char a, char b) {
      return a == b || (any_case && a >= 'A' && a <= 'Z' && a + ('a' - 'A') == b);
    };
    if (std::equal(found.begin(), found.end(), end.begin(), end.end(), same)) return 1 + end.size();
  }
  return 0;
}

bool is_letter(const Character& c) { return c.kind == kLetter; }
bool is_number(const Character& c) { return c.kind == kNumber; }
bool space(const Character& c) { return c.kind == kSpace; }
bool other(const Character& c) { return c.kind == kOther; }

// \s+(?!\S)|\s+: all of the spaces, but for the last before a word.
size_t spaces(std::string_view text) {
  Scan scan(text);
  size_t before_last = 0;
  while (!scan.ends() && space(scan.next())) {
    before_last = scan.at();
    scan.skip(scan.next().size);
  }
  return scan.ends() || before_last == 0 ? scan.at() : before_last;
}

size_t gpt2_piece(std::string_view text) {
  if (const size_t n = contraction(text, false); n > 0) return n;
  for (const auto& wanted : {is_letter, is_number, other}) {
    Scan scan(text);
    if (text[0] == ' ') scan.skip(1);
    if (scan.skip_while(wanted) > 0) return scan.at();
  }
  return spaces(text);
}

size_t modern_piece(std::string_view text, size_t digits_most) {
  if (const size_t n = contraction(text, true); n > 0) return n;
  const Character first = first_character(text);
  {
    Scan scan(text);
    if (!is_letter(first) && !is_number(first) && !is_newline(first.code)) scan.skip(first.size);
    if (scan.skip_while(is_letter) > 0) return scan.at();
  }
  Scan scan(text);
  if (scan.skip_while(is_number, digits_most) > 0) return scan.at();
  if (text[0] == ' ') scan.skip(1);
  if (scan.skip_while(other) > 0) {
    scan.skip_while([](const Character& c) { return is_newline(c.code); });
    return scan.at();
  }
  // \s*[\r\n]+: up to the last newline among the spaces.
  scan = Scan(text);
  size_t end = 0;
  while (!scan.ends() && space(scan.next())) {
    const Character c = scan.next();
    scan.skip(c.size);
    if (is_newline(c.code)) end = scan.at();
  }
  return end > 0 ? end : spaces(text);
}

size_t digits_piece(std::string_view text, size_t most) {
  Scan scan(text);
  if (scan.skip_while(is_number, most) > 0) return scan.at();
  scan.skip_while([](const Character& c) { return !is_number(c); });
  return scan.at();
}

size_t piece(Split how, std::string_view text) {
  switch (how) {
    case Split::kGpt2: return gpt2_piece(text);
    case Split::kLlama3: return modern_piece(text, 3);
    case Split::kQwen2: return modern_piece(text, 1);
    case Split::kDigits: return digits_piece(text, 1);
    case Split::kDigitRuns: return digits_piece(text, SIZE_MAX);
    case Split::kMarkedWords: return std::min(text.find(kSpaceMark, 1), text.size());
  }
  return text.size();
}

}  // namespace

std::string_view pattern_of(Split split) {
  if (split == Split::kGpt2) return kGpt2Pattern;
  if (split == Split::kLlama3) return kLlama3Pattern;
  if (split == Split::kQwen2) return kQwen2Pattern;
  return {};
}

std::optional<Split> split_of_pattern(std::string_view pattern) {
  for (const Split s : {Split::kGpt2, Split::kLlama3, Split::kQwen2})
    if (pattern == pattern_of(s)) return s;
  return std::nullopt;
}

std::vector<std::string_view> split(Split how, std::string_view text) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t size = piece(how, text);
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

}  // namespace mc::model
