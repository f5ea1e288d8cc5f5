#include "model/grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/grammar/json_schema.h"
#include "model/grammar/regex.h"
#include "model/grammar/token_trie.h"

namespace mc::model::grammar {
namespace {

constexpr int kGbnfDepthMax = 64;
constexpr uint32_t kGbnfRepeatMax = 100'000;
constexpr uint32_t kGbnfTokenMax = 10'000'000;

bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class GbnfReader {
 public:
  GbnfReader(Rules& rules, std::string_view text) : rules_(rules), whole_(text), left_(text) {}

  Result<Rules::Rule> run() {
    if (whole_.find("::=") == std::string_view::npos)
      return fail(Code::kUnsupported,
                  "the grammar has no rule 'root ::= ...': GBNF is read, Lark's form is not");
    for (skip(true); !left_.empty(); skip(true)) {
      const std::string name = take_name();
      if (name.empty()) return wrong("want the name of a rule");
      skip(true);
      if (!next("::=")) return wrong("want '::=' after the name of a rule");
      if (!defined_.insert(name).second) return wrong("rule '" + name + "' is defined twice");
      MC_TRY(const Rules::Node body, either(0));
      rules_.define(rule(name), body);
    }
    for (const auto& [name, id] : ids_)
      if (!defined_.contains(name))
        return fail(Code::kInvalid, "the grammar has no rule '%s'", name.c_str());
    if (!ids_.contains("root")) return fail(Code::kInvalid, "the grammar has no rule 'root'");
    return ids_.at("root");
  }

 private:
  Failure wrong(const std::string& why) const {
    const std::string_view before = whole_.substr(0, whole_.size() - left_.size());
    return fail(Code::kInvalid, "line %zu of the grammar: %s",
                static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1,
                why.c_str());
  }
  bool next(std::string_view s) {
    if (!left_.starts_with(s)) return false;
    left_.remove_prefix(s.size());
    return true;
  }
  // Spaces and comments; ends of lines where they mean nothing.
  void skip(bool lines) {
    while (!left_.empty()) {
      if (left_[0] == '#')
        left_.remove_prefix(std::min(left_.find('\n'), left_.size()));
      else if (left_[0] == ' ' || left_[0] == '\t' || left_[0] == '\r' ||
               (lines && left_[0] == '\n'))
        left_.remove_prefix(1);
      else
        return;
    }
  }
  std::string take_name() {
    size_t n = 0;
    while (n < left_.size() && in_name(left_[n])) ++n;
    std::string name(left_.substr(0, n));
    left_.remove_prefix(n);
    return name;
  }
  Rules::Rule rule(const std::string& name) {
    const auto it = ids_.find(name);
    if (it != ids_.end()) return it->second;
    return ids_.emplace(name, rules_.declare("rule '" + name + "'")).first->second;
  }
  // Whether a line that begins here defines a rule, so that the one before it is over.
  bool at_rule() {
    const std::string_view before = left_;
    const bool named = !take_name().empty();
    skip(true);
    const bool is = named && left_.starts_with("::=");
    left_ = before;
    return is;
  }

  Result<Rules::Node> either(int depth) {
    if (depth > kGbnfDepthMax) return wrong(strf("groups nested deeper than %d", kGbnfDepthMax));
    std::vector<Rules::Node> all;
    while (true) {
      MC_TRY(const Rules::Node one, sequence(depth));
      all.push_back(one);
      const std::string_view before = left_;
      skip(true);
      if (next("|")) continue;
      if (depth == 0) left_ = before;
      return rules_.either(all);
    }
  }

  Result<Rules::Node> sequence(int depth) {
    std::vector<Rules::Node> parts;
    skip(true);
    while (!rules_.full()) {
      const std::string_view before = left_;
      skip(true);
      const bool new_line =
          std::string_view(before.data(), before.size() - left_.size()).find('\n') !=
          std::string_view::npos;
      if (left_.empty() || left_[0] == '|' || left_[0] == ')') break;
      if ((new_line || parts.empty()) && depth == 0 && at_rule()) {
        left_ = before;
        break;
      }
      MC_TRY(const Rules::Node one, item(depth));
      MC_TRY(const Rules::Node repeated, repeats(one));
      parts.push_back(repeated);
    }
    return rules_.sequence(parts);
  }

  Result<Rules::Node> item(int depth) {
    if (next("\"")) return literal();
    if (next("[")) return char_class();
    if (next(".")) return rules_.characters({{0, kLastCharacter}});
    if (next("%json")) return schema();
    if (next("<[")) {
      const auto id = number(kGbnfTokenMax);
      if (!id || *id > kGbnfTokenMax || !next("]>"))
        return wrong(strf("want <[N]>, token N of %u at most", kGbnfTokenMax));
      return rules_.text(mark_bytes(*id));
    }
    if (next("(")) {
      MC_TRY(const Rules::Node inner, either(depth + 1));
      skip(true);
      if (!next(")")) return wrong("'(' without ')'");
      return inner;
    }
    const std::string name = take_name();
    if (name.empty())
      return wrong(strf("'%c' is no text, class, group or name of a rule", left_[0]));
    return rules_.call(rule(name));
  }

  // Behind %json.
  Result<Rules::Node> schema() {
    skip(true);
    const std::string_view text = left_.substr(0, object_bytes());
    if (text.empty()) return wrong("want a JSON schema that is an object behind %json");
    const auto json = parse_json(text);
    if (!json) return wrong("the schema behind %json: " + json.error().what);
    const auto root = read_json_schema(rules_, *json, spent_);
    if (!root) {
      const Failure at = wrong("the schema behind %json: " + root.error().what);
      return fail(root.error().code, "%s", at.value().what.c_str());
    }
    left_.remove_prefix(text.size());
    return rules_.call(*root);
  }
  // Of the object that begins here; 0: there is none, or it has no end.
  size_t object_bytes() const {
    if (!left_.starts_with('{')) return 0;
    size_t depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < left_.size(); ++i) {
      const char c = left_[i];
      if (c == '"') in_text = !in_text;
      if (in_text && c == '\\') ++i;
      if (in_text) continue;
      if (c == '{') ++depth;
      if (c == '}' && --depth == 0) return i + 1;
    }
    return 0;
  }

  Result<Rules::Node> repeats(Rules::Node part) {
    for (size_t times = 0; !left_.empty(); ++times) {
      if (times > 4) return wrong("repetitions of repetitions");
      if (next("*")) {
        part = rules_.repeat(part, 0);
      } else if (next("+")) {
        part = rules_.repeat(part, 1);
      } else if (next("?")) {
        part = rules_.maybe(part);
      } else if (next("{")) {
        const auto least = number();
        std::optional<uint32_t> most = least;
        if (least && next(",")) most = left_.starts_with('}') ? Rules::kNoEnd : number();
        if (!least || !most || !next("}") || *least > *most || *least > kGbnfRepeatMax ||
            (*most != Rules::kNoEnd && *most > kGbnfRepeatMax))
          return wrong(strf("want {n}, {n,} or {n,m}, of %u at most", kGbnfRepeatMax));
        part = rules_.repeat(part, *least, *most);
      } else {
        break;
      }
    }
    return part;
  }
  std::optional<uint32_t> number(uint32_t most = kGbnfRepeatMax) {
    std::optional<uint32_t> n;
    while (!left_.empty() && left_[0] >= '0' && left_[0] <= '9') {
      n = std::min(n.value_or(0) * 10 + static_cast<uint32_t>(left_[0] - '0'), most + 1);
      left_.remove_prefix(1);
    }
    return n;
  }

  Result<uint32_t> character() {
    if (!next("\\")) {
      auto c = take_character(left_);
      if (!c) return wrong(c.error().what);
      return *c;
    }
    if (left_.empty()) return wrong("a backslash at the end");
    const char c = left_[0];
    left_.remove_prefix(1);
    switch (c) {
      case 'n': return uint32_t{'\n'};
      case 'r': return uint32_t{'\r'};
      case 't': return uint32_t{'\t'};
      case 'x': return hex(2);
      case 'u': return hex(4);
      case 'U': return hex(8);
      default: break;
    }
    if (std::string_view("\"\\[]^-/'").find(c) == std::string_view::npos)
      return wrong(strf("'\\%c' is no escape", c));
    return static_cast<uint32_t>(c);
  }
  Result<uint32_t> hex(size_t digits) {
    uint32_t v = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = left_.empty() ? ' ' : left_[0];
      const size_t d = std::string_view("0123456789abcdef").find(static_cast<char>(c | 0x20));
      if (d == std::string_view::npos || c == ' ') return wrong("too few hexadecimal digits");
      v = v * 16 + static_cast<uint32_t>(d);
      left_.remove_prefix(1);
    }
    return v;
  }

  Result<Rules::Node> literal() {
    std::vector<Rules::Node> parts;
    while (!next("\"")) {
      if (left_.empty() || left_[0] == '\n') return wrong("a text without its end");
      MC_TRY(const uint32_t c, character());
      parts.push_back(rules_.characters(normal({{c, c}})));
    }
    return rules_.sequence(parts);
  }
  Result<Rules::Node> char_class() {
    const bool not_these = next("^");
    Characters set;
    while (!next("]")) {
      if (left_.empty()) return wrong("'[' without ']'");
      MC_TRY(const uint32_t first, character());
      uint32_t last = first;
      if (left_.size() > 1 && left_[0] == '-' && left_[1] != ']') {
        left_.remove_prefix(1);
        MC_TRY(last, character());
        if (first > last) return wrong("a range whose first is over its last");
      }
      set.push_back({first, last});
    }
    return rules_.characters(not_these ? all_but(set) : normal(std::move(set)));
  }

  Rules& rules_;
  SchemaWork spent_;
  std::string_view whole_, left_;
  std::map<std::string, Rules::Rule> ids_;
  std::set<std::string> defined_;
};

}  // namespace

Result<Rules::Rule> read_gbnf(Rules& rules, std::string_view text) {
  return GbnfReader(rules, text).run();
}

}  // namespace mc::model::grammar
