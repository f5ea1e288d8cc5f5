#include "model/grammar/regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mc::model::grammar {
namespace {

constexpr int kRegexDepthMax = 64;
constexpr uint32_t kRegexRepeatMax = 100'000;
constexpr uint32_t kByteOrderMark = 0xFEFF;

const Characters kDigits = {{'0', '9'}};
const Characters kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Characters kSpaces = {{9, 13}, {' ', ' '}};
const Characters kAllSpaces = {{9, 13},
                               {0x1C, 0x20},
                               {0x85, 0x85},
                               {0xA0, 0xA0},
                               {0x1680, 0x1680},
                               {0x2000, 0x200A},
                               {0x2028, 0x2029},
                               {0x202F, 0x202F},
                               {0x205F, 0x205F},
                               {0x3000, 0x3000},
                               {kByteOrderMark, kByteOrderMark}};
const Characters kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
const Characters kAscii = {{0, 0x7F}};

class RegexReader {
 public:
  RegexReader(Rules& rules, std::string_view pattern, const RegexUse& use)
      : rules_(rules), whole_(pattern), left_(pattern), use_(use) {}

  Result<Rules::Node> run() {
    MC_TRY(const Rules::Node node, either(0));
    if (!left_.empty()) return wrong("')' without '('");
    return node;
  }

 private:
  Failure wrong(const std::string& why) const {
    return fail(Code::kInvalid, "at byte %zu of the pattern: %s", whole_.size() - left_.size(),
                why.c_str());
  }
  Failure unsupported(const std::string& what) const {
    return fail(Code::kUnsupported, "at byte %zu of the pattern: %s is not supported",
                whole_.size() - left_.size(), what.c_str());
  }
  bool next(std::string_view s) {
    if (!left_.starts_with(s)) return false;
    left_.remove_prefix(s.size());
    return true;
  }

  Result<Rules::Node> either(int depth) {
    if (depth > kRegexDepthMax) return wrong(strf("groups nested deeper than %d", kRegexDepthMax));
    std::vector<Rules::Node> all;
    do {
      MC_TRY(const Rules::Node one, sequence(depth));
      all.push_back(one);
    } while (next("|"));
    return rules_.either(all);
  }

  Result<Rules::Node> sequence(int depth) {
    std::vector<Rules::Node> parts;
    bool begins = false, ends = false;
    while (!left_.empty() && left_[0] != '|' && left_[0] != ')') {
      if (left_[0] == '^' || left_[0] == '$') {
        const bool end = left_[0] == '$';
        left_.remove_prefix(1);
        if (depth > 0) return unsupported(end ? "$ in a group" : "^ in a group");
        if (!end && !parts.empty()) return unsupported("^ that is not at the beginning");
        if (end && !left_.empty() && left_[0] != '|')
          return unsupported("$ that is not at the end");
        (end ? ends : begins) = true;
        continue;
      }
      MC_TRY(const Rules::Node one, atom(depth));
      MC_TRY(const Rules::Node repeated, repeats(one));
      parts.push_back(repeated);
    }
    if (depth == 0 && use_.anywhere) {
      if (!begins) parts.insert(parts.begin(), use_.around);
      if (!ends) parts.push_back(use_.around);
    }
    return rules_.sequence(parts);
  }

  Result<Rules::Node> repeats(Rules::Node part) {
    uint32_t least = 1, most = 1;
    if (next("*")) {
      least = 0, most = Rules::kNoEnd;
    } else if (next("+")) {
      most = Rules::kNoEnd;
    } else if (next("?")) {
      least = 0;
    } else if (const auto counts = braces()) {
      std::tie(least, most) = *counts;
      if (least > most) return wrong("a repetition whose least is over its most");
      if (least > kRegexRepeatMax || (most != Rules::kNoEnd && most > kRegexRepeatMax))
        return wrong(strf("a repetition over %u", kRegexRepeatMax));
    } else {
      return part;
    }
    (void)next("?");  // lazy: the same texts
    if (left_.starts_with('+')) return unsupported("a possessive repetition");
    if (left_.starts_with('*') || left_.starts_with('?') || braces())
      return wrong("a repetition of a repetition");
    return rules_.repeat(part, least, most);
  }

  std::optional<uint32_t> number() {
    std::optional<uint32_t> n;
    while (!left_.empty() && left_[0] >= '0' && left_[0] <= '9') {
      n = std::min(n.value_or(0) * 10 + static_cast<uint32_t>(left_[0] - '0'), kRegexRepeatMax + 1);
      left_.remove_prefix(1);
    }
    return n;
  }
  // {n}, {n,} and {n,m}; anything else is text.
  std::optional<std::pair<uint32_t, uint32_t>> braces() {
    const std::string_view before = left_;
    if (!next("{")) return {};
    const auto least = number();
    std::optional<uint32_t> most = least;
    if (least && next(",")) most = left_.starts_with('}') ? Rules::kNoEnd : number();
    if (least && most && next("}")) return std::pair(*least, *most);
    left_ = before;
    return {};
  }

  Result<Rules::Node> atom(int depth) {
    if (left_[0] == '*' || left_[0] == '+' || left_[0] == '?') return wrong("nothing to repeat");
    if (next("(")) {
      if (next("?")) MC_TRY_(group());
      MC_TRY(const Rules::Node inner, either(depth + 1));
      if (!next(")")) return wrong("'(' without ')'");
      return inner;
    }
    if (next("[")) return char_class();
    if (next(".")) return use_.write(rules_, all_but(kLineEnds));
    if (next("\\")) {
      MC_TRY(const Characters set, escape_set(false));
      return use_.write(rules_, set);
    }
    MC_TRY(const uint32_t c, take_character(left_));
    return use_.write(rules_, {{c, c}});
  }

  Result<> group() {  // after "(?"
    if (next(":")) return {};
    if (left_.starts_with('=') || left_.starts_with('!')) return unsupported("lookahead");
    if (left_.starts_with("<=") || left_.starts_with("<!")) return unsupported("lookbehind");
    if (left_.starts_with("P=")) return unsupported("a reference back");
    (void)next("P");
    if (!next("<")) return unsupported("a group with flags");
    const size_t end = left_.find('>');
    if (end == std::string_view::npos) return wrong("a group's name without '>'");
    left_.remove_prefix(end + 1);
    return {};
  }

  // After a backslash.
  Result<Characters> escape_set(bool in_class) {
    if (left_.empty()) return wrong("a backslash at the end");
    const char c = left_[0];
    switch (c) {
      case 'd': return left_.remove_prefix(1), kDigits;
      case 'w': return left_.remove_prefix(1), kWord;
      case 's': return left_.remove_prefix(1), kSpaces;
      // Of ASCII, as dialects disagree about what else is a digit or a letter.
      case 'D': return left_.remove_prefix(1), both(all_but(kDigits), kAscii);
      case 'W': return left_.remove_prefix(1), both(all_but(kWord), kAscii);
      case 'S': return left_.remove_prefix(1), all_but(kAllSpaces);
      default: break;
    }
    if (c == 'b' && in_class) return left_.remove_prefix(1), Characters{{8, 8}};
    if (c == 'b' || c == 'B' || c == 'A' || c == 'Z' || c == 'z' || c == 'G')
      return unsupported(strf("\\%c", c));
    if (c == 'p' || c == 'P' || c == 'k') return unsupported(strf("\\%c", c));
    if (c >= '1' && c <= '9') return unsupported("a reference back");
    MC_TRY(const uint32_t one, escaped_character());
    return Characters{{one, one}};
  }

  Result<uint32_t> escaped_character() {
    const char c = left_[0];
    const std::string_view names = "nrtfv0";
    const std::string_view values("\n\r\t\f\v\0", 6);
    if (const size_t at = names.find(c); at != std::string_view::npos) {
      left_.remove_prefix(1);
      return static_cast<uint32_t>(values[at]);
    }
    if (next("x")) return hex(2);
    if (next("u{")) {
      const size_t end = left_.find('}');
      if (end == 0 || end > 6) return wrong("\\u{ without up to six digits and '}'");
      MC_TRY(const uint32_t v, hex(end));
      left_.remove_prefix(1);
      return v;
    }
    if (next("u")) return hex(4);
    if (next("c")) return unsupported("\\c");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return unsupported(strf("\\%c", c));
    return take_character(left_);
  }
  Result<uint32_t> hex(size_t digits) {
    uint32_t v = 0;
    if (left_.size() < digits) return wrong("too few hexadecimal digits");
    for (size_t i = 0; i < digits; ++i) {
      const char c = left_[i];
      const int d = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
      if (d < 0) return wrong("no hexadecimal digit");
      v = v * 16 + static_cast<uint32_t>(d);
    }
    left_.remove_prefix(digits);
    return v;
  }

  Result<Rules::Node> char_class() {  // after "["
    const bool not_these = next("^");
    Characters set;
    bool first = true;
    while (first || !left_.starts_with(']')) {
      if (left_.empty()) return wrong("'[' without ']'");
      if (first && left_[0] == ']') {
        if (not_these || left_.size() == 1) return unsupported("an empty class");
        return unsupported("']' as the first of a class: write \\]");
      }
      first = false;
      MC_TRY(Characters one, class_part());
      const bool single = one.size() == 1 && one[0].first == one[0].last;
      if (left_.size() > 1 && left_[0] == '-' && left_[1] != ']') {
        left_.remove_prefix(1);
        MC_TRY(const Characters last, class_part());
        if (!single || last.size() != 1 || last[0].first != last[0].last)
          return wrong("a range of classes");
        if (one[0].first > last[0].first) return wrong("a range whose first is over its last");
        one = {{one[0].first, last[0].first}};
      }
      set.insert(set.end(), one.begin(), one.end());
      if (rules_.full()) return rules_.never();
    }
    left_.remove_prefix(1);
    return use_.write(rules_, not_these ? all_but(set) : normal(std::move(set)));
  }
  Result<Characters> class_part() {
    if (left_.empty()) return wrong("'[' without ']'");
    if (left_.starts_with("[:")) return unsupported("a class by name");
    if (next("\\")) return escape_set(true);
    MC_TRY(const uint32_t c, take_character(left_));
    return Characters{{c, c}};
  }

  Rules& rules_;
  std::string_view whole_, left_;
  const RegexUse& use_;
};

}  // namespace

Result<uint32_t> take_character(std::string_view& text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.empty()) return fail(Code::kInvalid, "the text ends too early");
  const uint8_t first = at(0);
  const size_t size = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (size == 0 || size > text.size()) return fail(Code::kInvalid, "a character is not UTF-8");
  uint32_t c = size == 1 ? first : first & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xC0) != 0x80) return fail(Code::kInvalid, "a character is not UTF-8");
    c = c << 6 | (at(i) & 0x3Fu);
  }
  text.remove_prefix(size);
  return c;
}

Result<Rules::Node> read_regex(Rules& rules, std::string_view pattern, const RegexUse& use) {
  return RegexReader(rules, pattern, use).run();
}

Result<Rules::Node> read_regex(Rules& rules, std::string_view pattern) {
  const RegexUse plain{[](Rules& r, const Characters& set) { return r.characters(set); }, 0, false};
  return read_regex(rules, pattern, plain);
}

}  // namespace mc::model::grammar
