#include "model/template/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "model/template/characters.h"

namespace mc::model::jinja {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }
bool name_begin(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string with_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) {
      const size_t tag = next_tag();
      const std::string_view text = rest().substr(0, tag - at_);
      if (tag == source_.size()) {
        add_text(text);
        break;
      }
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      add_text(before_tag(text, source_[tag + 1], sign));
      count_lines(text);
      at_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      MC_TRY_(tag_at(source_[tag + 1]));
    }
    add(Token::Kind::kEnd, "");
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  Failure wrong(const std::string& what) const {
    return fail(Code::kInvalid, "line %u: %s", line_, what.c_str());
  }

  size_t next_tag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i)
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    return source_.size();
  }

  // Text without the white space that the tag after it takes.
  std::string_view before_tag(std::string_view text, char kind, char sign) const {
    if (sign == '-') return stripped(text, {}, false, true);
    if (sign == '+' || kind == '{') return text;
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !line_begins_) return text;
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    return stripped(text.substr(begin)).empty() ? text.substr(0, begin) : text;
  }

  void count_lines(std::string_view text) {
    line_ += static_cast<unsigned>(std::count(text.begin(), text.end(), '\n'));
  }

  void add(Token::Kind kind, std::string text) {
    Token t;
    t.kind = kind;
    t.text = std::move(text);
    t.line = line_;
    out_.push_back(std::move(t));
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(Token::Kind::kText, std::string(text));
  }

  // Passes the end of a tag, and the white space that it takes.
  void pass_end(size_t size, bool minus, bool newline) {
    const size_t begin = at_;
    at_ += size;
    if (minus) {
      at_ = source_.size() - stripped(rest(), {}, true, false).size();
    } else if (newline && rest().starts_with('\n')) {
      ++at_;
    }
    const std::string_view passed = std::string_view(source_).substr(begin, at_ - begin);
    line_begins_ = passed.ends_with('\n');
    count_lines(passed);
  }

  Result<> tag_at(char kind) {
    if (kind == '#') return comment();
    if (kind == '%' && word_is("raw")) return raw();
    add(kind == '{' ? Token::Kind::kPrintBegin : Token::Kind::kTagBegin, "");
    return inside(kind == '{' ? '}' : '%');
  }

  // Does a tag of this one word begin here?
  bool word_is(std::string_view word) const {
    const std::string_view text = stripped(rest(), {}, true, false);
    if (!text.starts_with(word)) return false;
    const std::string_view after = stripped(text.substr(word.size()), {}, true, false);
    return after.starts_with("%}") || after.starts_with("-%}") || after.starts_with("+%}");
  }

  Result<> comment() {
    const size_t end = rest().find("#}");
    if (end == std::string_view::npos) return wrong("a comment that does not end");
    const char sign = end > 0 ? rest()[end - 1] : '\0';
    count_lines(rest().substr(0, end));
    at_ += end;
    pass_end(2, sign == '-', sign != '+');
    return {};
  }

  Result<> raw() {
    size_t end = rest().find("%}");
    const bool minus = rest()[end - 1] == '-';
    count_lines(rest().substr(0, end));
    at_ += end;
    pass_end(2, minus, true);
    for (size_t i = at_;; ++i) {
      i = source_.find("{%", i);
      if (i == std::string::npos) return wrong("{% raw %} that does not end");
      const std::string_view text = rest().substr(0, i - at_);
      const char sign = i + 2 < source_.size() ? source_[i + 2] : '\0';
      const size_t kept = at_;
      at_ = i + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (!word_is("endraw")) {
        at_ = kept;
        continue;
      }
      add_text(before_tag(text, '%', sign));
      count_lines(text);
      end = rest().find("%}");
      const char last = rest()[end - 1];
      count_lines(rest().substr(0, end));
      at_ += end;
      pass_end(2, last == '-', last != '+');
      return {};
    }
  }

  Result<> inside(char end) {
    std::string open;  // brackets
    while (at_ < source_.size()) {
      if (open.empty() && ends(end)) return {};
      const char c = source_[at_];
      if (white(c)) {
        line_ += c == '\n' ? 1 : 0;
        ++at_;
      } else if (digit(c)) {
        MC_TRY_(number());
      } else if (name_begin(c)) {
        size_t size = 0;
        while (size < rest().size() && (name_begin(rest()[size]) || digit(rest()[size]))) ++size;
        add(Token::Kind::kName, std::string(rest().substr(0, size)));
        at_ += size;
      } else if (c == '\'' || c == '"') {
        MC_TRY_(string(c));
      } else {
        MC_TRY_(sign(open));
      }
    }
    return wrong("a tag that does not end");
  }

  bool ends(char end) {
    const char c = source_[at_];
    const size_t minus = c == '-' || (c == '+' && end == '%') ? 1 : 0;
    if (at_ + minus + 1 >= source_.size() || source_[at_ + minus] != end ||
        source_[at_ + minus + 1] != '}')
      return false;
    add(end == '}' ? Token::Kind::kPrintEnd : Token::Kind::kTagEnd, "");
    pass_end(minus + 2, c == '-', end == '%' && c != '+');
    return true;
  }

  Result<> sign(std::string& open) {
    constexpr std::array<std::string_view, 6> kLong = {"==", "!=", "<=", ">=", "//", "**"};
    for (const std::string_view s : kLong)
      if (rest().starts_with(s)) {
        add(Token::Kind::kSign, std::string(s));
        at_ += 2;
        return {};
      }
    const char c = source_[at_];
    if (std::string_view("+-*/%~<>=.,:|()[]{}").find(c) == std::string_view::npos)
      return wrong(strf("a character that means nothing here (code %d)",
                        static_cast<int>(static_cast<unsigned char>(c))));
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return wrong(strf("an unexpected '%c'", c));
      open.pop_back();
    }
    add(Token::Kind::kSign, std::string(1, c));
    ++at_;
    return {};
  }

  Result<> number() {
    std::string digits;
    bool real = false;
    const auto take = [&] {
      while (at_ < source_.size() && (digit(source_[at_]) || source_[at_] == '_')) {
        if (source_[at_] != '_') digits += source_[at_];
        ++at_;
      }
    };
    const auto at = [&](size_t i) { return at_ + i < source_.size() ? source_[at_ + i] : '\0'; };
    take();
    const bool member = !out_.empty() && out_.back().kind == Token::Kind::kSign &&
                        out_.back().text == ".";  // x.0.1
    if (!member && at(0) == '.' && digit(at(1))) {
      real = true;
      digits += '.';
      ++at_;
      take();
    }
    if (!member && (at(0) == 'e' || at(0) == 'E') &&
        (digit(at(1)) || ((at(1) == '-' || at(1) == '+') && digit(at(2))))) {
      real = true;
      digits += 'e';
      if (!digit(at(1))) digits += at(1);
      at_ += digit(at(1)) ? 1 : 2;
      take();
    }
    add(real ? Token::Kind::kFloat : Token::Kind::kInteger, digits);
    if (real) {
      out_.back().number = std::strtod(digits.c_str(), nullptr);
      return {};
    }
    const auto end = digits.data() + digits.size();
    if (std::from_chars(digits.data(), end, out_.back().integer).ec != std::errc())
      return wrong("a number that is too large");
    return {};
  }

  Result<> string(char quote) {
    const unsigned line = line_;
    std::string value;
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      line_ += source_[at_] == '\n' ? 1 : 0;
      if (source_[at_] == '\\')
        escape(value);
      else
        value += source_[at_];
    }
    if (at_ >= source_.size()) {
      line_ = line;
      return wrong("a string that does not end");
    }
    ++at_;
    if (!out_.empty() && out_.back().kind == Token::Kind::kString)
      out_.back().text += value;  // "a" "b"
    else
      add(Token::Kind::kString, std::move(value));
    return {};
  }

  // At a backslash; leaves at the last character of what it stands for.
  void escape(std::string& value) {
    if (at_ + 1 >= source_.size()) return;
    const char c = source_[++at_];
    constexpr std::string_view kNames = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
    const size_t known = kNames.find(c);
    if (known != std::string_view::npos) {
      value += kMeant[known];
    } else if (c == '\n') {
      ++line_;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      code(value, c, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (c >= '0' && c <= '7') {
      uint32_t octal = 0;
      size_t size = 0;
      for (; size < 3 && at_ + size < source_.size(); ++size) {
        const char o = source_[at_ + size];
        if (o < '0' || o > '7') break;
        octal = octal * 8 + static_cast<uint32_t>(o - '0');
      }
      append_character(value, octal);
      at_ += size - 1;
    } else {
      value += '\\';
      value += c;
    }
  }

  void code(std::string& value, char name, size_t digits) {
    uint32_t code = 0;
    const std::string_view text = rest().substr(1, digits);
    const auto read = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    if (text.size() != digits || read.ec != std::errc() || read.ptr != text.data() + text.size()) {
      value += '\\';
      value += name;
      return;
    }
    append_character(value, code);
    at_ += digits;
  }

  const std::string source_;
  size_t at_ = 0;
  unsigned line_ = 1;
  bool line_begins_ = true;
  std::vector<Token> out_;
};

}  // namespace

Result<std::vector<Token>> tokens_of(std::string_view source) {
  return Lexer(with_newlines(source)).run();
}

}  // namespace mc::model::jinja
