// The parser of json.h: values are counted while they are read, and nothing is read twice.
// Source: RFC 8259.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace mc {
namespace {

constexpr size_t kFewMembers = 8;

using Members = std::vector<std::pair<const std::string, Json>>;  // what an ordered object is
Members& members_of(Json& object) { return object.get_ref<Json::object_t&>(); }

// A name that occurs twice. The names are sorted: a hash could be made to collide.
const std::string* repeated(const Members& members) {
  if (members.size() <= kFewMembers) {
    for (size_t i = 1; i < members.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (members[i].first == members[j].first) return &members[i].first;
    return nullptr;
  }
  std::vector<const std::string*> names;
  names.reserve(members.size());
  for (const auto& member : members) names.push_back(&member.first);
  std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
  const auto at =
      std::adjacent_find(names.begin(), names.end(), [](auto* a, auto* b) { return *a == *b; });
  return at == names.end() ? nullptr : *at;
}

// Bytes of the well-formed UTF-8 character of two or more that `p` starts with; 0: none.
// Source: Unicode 15, table 3-7.
size_t wide_character(const char* p, const char* end) {
  const auto at = [&](ptrdiff_t i) -> unsigned {
    return end - p > i ? static_cast<unsigned char>(p[i]) : 0;
  };
  const auto follows = [&](ptrdiff_t i) { return (at(i) & 0xc0) == 0x80; };
  const unsigned first = at(0), second = at(1);
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool fits = (first != 0xe0 || second >= 0xa0) && (first != 0xed || second <= 0x9f);
    return fits && follows(1) && follows(2) ? 3 : 0;
  }
  if (first < 0xf0 || first > 0xf4) return 0;
  const bool fits = (first != 0xf0 || second >= 0x90) && (first != 0xf4 || second <= 0x8f);
  return fits && follows(1) && follows(2) && follows(3) ? 4 : 0;
}

void append_character(std::string& out, unsigned c) {
  const auto add = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return add(c);
  if (c < 0x800) return add(0xc0 | c >> 6), add(0x80 | (c & 0x3f));
  if (c < 0x10000)
    add(0xe0 | c >> 12);
  else
    add(0xf0 | c >> 18), add(0x80 | (c >> 12 & 0x3f));
  add(0x80 | (c >> 6 & 0x3f)), add(0x80 | (c & 0x3f));
}

class JsonParser {
 public:
  JsonParser(std::string_view text, const JsonLimits& limits)
      : begin_(text.data()), at_(begin_), end_(begin_ + text.size()), limits_(limits) {}

  Result<Json> read() {
    Json root;
    if (end_ - at_ >= 3 && std::memcmp(at_, "\xEF\xBB\xBF", 3) == 0) at_ += 3;
    if (space() && value(root, 0) && space() && at_ == end_) return root;
    if (error_.empty()) wrong("want nothing more");
    return fail(Code::kInvalid, "%s", error_.c_str());
  }

 private:
  bool refuse(std::string why) {
    error_ = std::move(why);
    return false;
  }
  bool wrong(const char* why) {
    const auto line = std::count(begin_, at_, '\n') + 1;
    const char* start = at_;
    while (start != begin_ && start[-1] != '\n') --start;
    const std::string here =
        at_ == end_ ? "the text ends" : "'" + escape(std::string_view(at_, 1)) + "'";
    return refuse(strf("parse error at line %td, column %td: %s: %s", line, at_ - start + 1,
                       here.c_str(), why));
  }
  char next() const { return at_ == end_ ? '\0' : *at_; }
  bool take(char c) {
    const bool is = at_ != end_ && *at_ == c;
    at_ += is;
    return is;
  }
  bool take(std::string_view word) {
    const bool is = std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(word);
    at_ += is ? word.size() : 0;
    return is;
  }

  bool space() {  // false: a comment that does not end
    for (;;) {
      while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
      if (!limits_.comments || next() != '/') return true;
      const std::string_view rest(at_, static_cast<size_t>(end_ - at_));
      size_t size = 0;
      if (rest.starts_with("//"))
        size = std::min(rest.find_first_of("\n\r"), rest.size());
      else if (const size_t close = rest.find("*/", 2);
               rest.starts_with("/*") && close != std::string_view::npos)
        size = close + 2;
      if (size == 0) return wrong("want a comment that ends");
      at_ += size;
    }
  }

  bool value(Json& out, size_t depth) {
    if (++values_ > limits_.values) return refuse(strf("more than %zu values", limits_.values));
    switch (next()) {
      case '{': return object(out, depth);
      case '[': return array(out, depth);
      case '"': {
        std::string text;
        if (!string(text)) return false;
        out = std::move(text);
        return true;
      }
      case 't': out = true; return take("true") || wrong("want true");
      case 'f': out = false; return take("false") || wrong("want false");
      case 'n': out = nullptr; return take("null") || wrong("want null");
      default: return number(out);
    }
  }

  bool enter(size_t depth) {
    ++at_;
    if (depth < limits_.depth) return true;
    return refuse(strf("JSON nested deeper than %zu levels", limits_.depth));
  }

  bool object(Json& out, size_t depth) {
    if (!enter(depth)) return false;
    out = Json::object();
    Members& members = members_of(out);
    if (!space()) return false;
    if (take('}')) return true;
    do {
      if (members.size() >= limits_.members)
        return refuse(strf("an object has more than %zu members", limits_.members));
      std::string name;
      if (!space()) return false;
      if (next() != '"') return wrong("want a member's name");
      if (!string(name) || !space()) return false;
      if (!take(':')) return wrong("want ':'");
      members.emplace_back(std::move(name), nullptr);
      if (!space() || !value(members.back().second, depth + 1) || !space()) return false;
    } while (take(','));
    if (!take('}')) return wrong("want ',' or '}'");
    const std::string* const twice = repeated(members);
    return twice == nullptr || refuse("'" + escape(*twice) + "' occurs twice in an object");
  }

  bool array(Json& out, size_t depth) {
    if (!enter(depth)) return false;
    out = Json::array();
    auto& list = out.get_ref<Json::array_t&>();
    if (!space()) return false;
    if (take(']')) return true;
    do {
      if (!space() || !value(list.emplace_back(), depth + 1) || !space()) return false;
    } while (take(','));
    return take(']') || wrong("want ',' or ']'");
  }

  bool string(std::string& out) {
    ++at_;
    for (;;) {
      const char* const from = at_;
      while (at_ != end_ && *at_ != '"' && *at_ != '\\' &&
             static_cast<unsigned char>(*at_) >= ' ') {
        if (static_cast<signed char>(*at_) > 0) {
          ++at_;
          continue;
        }
        const size_t size = wide_character(at_, end_);
        if (size == 0) return wrong("want UTF-8");
        at_ += size;
      }
      if (at_ != from) out.append(from, at_);
      if (take('"')) return true;
      if (!take('\\')) return wrong("want the end of a string, or a character of it");
      if (!escaped(out)) return false;
    }
  }

  bool escaped(std::string& out) {
    const auto meant = [](char letter) -> char {
      switch (letter) {
        case '"':
        case '\\':
        case '/': return letter;
        case 'b': return '\b';
        case 'f': return '\f';
        case 'n': return '\n';
        case 'r': return '\r';
        case 't': return '\t';
        default: return '\0';
      }
    };
    if (const char c = meant(next()); c != '\0') {
      ++at_;
      out += c;
      return true;
    }
    unsigned c = 0, low = 0;
    if (!take('u') || !hex(c)) return wrong("want an escape such as \\n or \\u000a");
    if (c >= 0xd800 && c <= 0xdfff) {
      const bool pair = c <= 0xdbff && take("\\u") && hex(low) && low >= 0xdc00 && low <= 0xdfff;
      if (!pair) return wrong("want a pair of surrogates");
      c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    append_character(out, c);
    return true;
  }
  bool hex(unsigned& c) {
    for (int i = 0; i < 4; ++i, ++at_) {
      const char digit = next();
      if (digit >= '0' && digit <= '9')
        c = c * 16 + static_cast<unsigned>(digit - '0');
      else if ((digit | 0x20) >= 'a' && (digit | 0x20) <= 'f')
        c = c * 16 + static_cast<unsigned>((digit | 0x20) - 'a') + 10;
      else
        return false;
    }
    return true;
  }

  bool digits() {
    const char* const from = at_;
    while (next() >= '0' && next() <= '9') ++at_;
    return at_ != from;
  }
  bool number(Json& out) {
    const char* const from = at_;
    const bool negative = take('-');
    if (!take('0') && !digits()) return wrong(negative ? "want a digit" : "want a value");
    bool whole = true;
    if (take('.')) {
      whole = false;
      if (!digits()) return wrong("want a digit");
    }
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      if (!digits()) return wrong("want a digit");
    }
    if (uint64_t n = 0; whole && !negative && std::from_chars(from, at_, n).ec == std::errc()) {
      out = n;
      return true;
    }
    if (int64_t n = 0; whole && negative && std::from_chars(from, at_, n).ec == std::errc()) {
      out = n;
      return true;
    }
    double d = 0;
    if (std::from_chars(from, at_, d).ec != std::errc())  // too large, or so small that it is 0
      d = std::strtod(std::string(from, at_).c_str(), nullptr);
    out = d;
    return std::isfinite(d) || refuse("a number is too large");
  }

  const char* const begin_;
  const char* at_;
  const char* const end_;
  const JsonLimits& limits_;
  size_t values_ = 0;
  std::string error_;
};

}  // namespace

void append_member(Json& object, std::string name, Json value) {
  members_of(object).emplace_back(std::move(name), std::move(value));
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  return JsonParser(text, limits).read();
}

}  // namespace mc
