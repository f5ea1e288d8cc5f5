#include "model/grammar/json_text.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "model/grammar/regex.h"

namespace mc::model::grammar {
namespace {

constexpr uint32_t kSpacesMax = 32;
const Characters kRaw = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastCharacter}};

// What a Gregorian calendar has, whatever the year.
constexpr const char* kDate =
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
constexpr const char* kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
constexpr const char* kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
constexpr const char* kByte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

const std::vector<std::pair<std::string, std::string>>& known_formats() {
  static const std::vector<std::pair<std::string, std::string>> all = {
      {"date", kDate},
      {"time", kTime},
      {"date-time", std::string(kDate) + "T" + kTime},
      {"duration",
       "P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,2}M(?:[0-9]{1,2}D)?)?|[0-9]{1,2}M(?:[0-9]{1,2}D)?|"
       "[0-9]{1,3}D)(?:T[0-9]{1,2}H(?:[0-9]{1,2}M(?:[0-9]{1,2}S)?)?)?)"},
      {"email", strf("[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31})?@%s(?:\\.%s){1,3}",
                     "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?",
                     "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?")},
      {"hostname", strf("%s(?:\\.%s){0,2}", kLabel, kLabel)},
      {"ipv4", strf("(?:%s\\.){3}%s", kByte, kByte)},
      {"ipv6", "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
      {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
      {"uri",
       "https?://[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?(?:\\.[a-z]{2,16}){1,3}"
       "(?:/[A-Za-z0-9._~-]{1,64}){0,8}/?(?:\\?[A-Za-z0-9._~=&-]{1,128})?"}};
  return all;
}

}  // namespace

JsonText::JsonText(Rules& rules) : rules_(rules) {
  Rules& r = rules_;
  const auto set = [&](const char* bytes) {
    ByteSet s;
    for (const char* b = bytes; *b != 0; ++b) s.set(static_cast<uint8_t>(*b));
    return r.set(s);
  };
  spaces_ = r.declare("spaces");
  r.define(spaces_,
           r.maybe(r.either({r.text(" "),
                             r.sequence({r.text("\n"), r.repeat(r.text(" "), 0, kSpacesMax)}),
                             r.sequence({r.text("\n"), r.repeat(r.text("\t"), 1, 8)})})));
  comma_ = r.declare("a comma");
  r.define(comma_, r.sequence({r.text(","), spaces()}));

  // \u of what is no surrogate, or of a pair.
  const Rules::Node hex = set("0123456789abcdefABCDEF");
  const Rules::Node plain =
      r.either({r.sequence({set("0123456789abcefABCEF"), r.repeat(hex, 3, 3)}),
                r.sequence({set("dD"), set("01234567"), r.repeat(hex, 2, 2)})});
  const Rules::Node pair = r.sequence({set("dD"), set("89abAB"), r.repeat(hex, 2, 2), r.text("\\u"),
                                       set("dD"), set("cdefCDEF"), r.repeat(hex, 2, 2)});
  const Rules::Node escaped = r.sequence(
      {r.text("\\"),
       r.either({set("\"\\/bfnrt"), r.sequence({r.text("u"), r.either({plain, pair})})})});
  character_ = r.declare("a character");
  r.define(character_, r.either({r.characters(normal(kRaw)), escaped}));
  string_ = r.declare("a string");
  // Most texts are strings' characters: as edges, they need no way back.
  r.define(string_, r.sequence({r.text("\""), r.repeat(r.body(character_), 0), r.text("\"")}));

  beyond_ascii_ = r.declare("a character beyond ASCII");
  r.define(beyond_ascii_, r.characters(normal({{0x80, kLastCharacter}})));
  raw_ = r.declare("characters without escapes");
  r.define(raw_, r.repeat(r.characters(normal(kRaw)), 0));

  integer_ = r.declare("an integer");
  r.define(integer_,
           r.sequence({r.maybe(r.text("-")),
                       r.either({r.text("0"), r.sequence({digit('1', '9'), digits(0, 14)})})}));
  number_ = r.declare("a number");
  r.define(number_,
           r.sequence({r.call(integer_), part_any(15),
                       r.maybe(r.sequence({set("eE"), r.maybe(set("+-")), digits(1, 2)}))}));
  any_ = r.declare("a value");
  object_ = r.declare("an object");
  array_ = r.declare("an array");
  const Rules::Node member = r.sequence({any_string(), r.text(":"), spaces(), any()});
  r.define(object_,
           object_of(r.maybe(r.sequence({member, r.repeat(r.sequence({comma(), member}), 0)}))));
  r.define(array_,
           array_of(r.maybe(r.sequence({any(), r.repeat(r.sequence({comma(), any()}), 0)}))));
  r.define(any_, r.either({any_object(), any_array(), any_string(), any_number(), r.text("true"),
                           r.text("false"), r.text("null")}));
}

Rules::Node JsonText::object_of(Rules::Node members) {
  return rules_.sequence({rules_.text("{"), spaces(), members, spaces(), rules_.text("}")});
}
Rules::Node JsonText::array_of(Rules::Node elements) {
  return rules_.sequence({rules_.text("["), spaces(), elements, spaces(), rules_.text("]")});
}

Rules::Node JsonText::string(uint32_t least, uint32_t most) {
  if (least == 0 && most == Rules::kNoEnd) return any_string();
  const Rules::Node some = rules_.repeat(rules_.call(character_), least, most);
  return rules_.sequence({rules_.text("\""), some, rules_.text("\"")});
}

Rules::Node JsonText::key(const std::string& name) {
  return rules_.sequence({rules_.text(dump_json(Json(name)) + ":"), spaces()});
}

// Names that agree in their first `from` characters: what is behind these and in none of them.
Rules::Node JsonText::other_text(const std::vector<std::string>& names, size_t from) {
  Characters taken;
  std::vector<Rules::Node> all;
  bool may_end = true;
  for (size_t i = 0; i < names.size() && !rules_.full();) {
    if (names[i].size() == from) {
      may_end = false;
      ++i;
      continue;
    }
    std::string_view text = std::string_view(names[i]).substr(from);
    const auto c = take_character(text);
    if (!c) {
      ++i;
      continue;
    }
    const size_t next = names[i].size() - text.size();
    std::vector<std::string> same;
    for (; i < names.size() && names[i].size() >= next &&
           std::string_view(names[i]).substr(from, next - from) ==
               std::string_view(same.empty() ? names[i] : same[0]).substr(from, next - from);
         ++i)
      same.push_back(names[i]);
    taken.push_back({*c, *c});
    const Characters one = both({{*c, *c}}, kRaw);
    if (!one.empty())
      all.push_back(rules_.sequence({rules_.characters(one), other_text(same, next)}));
  }
  const Characters free = both(all_but(taken), normal(kRaw));
  const bool ascii = taken.empty() || taken.back().last < 0x80;
  const Rules::Node first =
      ascii
          ? rules_.either({rules_.characters(both(free, {{0, 0x7F}})), rules_.call(beyond_ascii_)})
          : rules_.characters(free);
  all.push_back(rules_.sequence({first, rules_.call(raw_)}));
  if (may_end) all.push_back(rules_.empty());
  return rules_.either(all);
}

Rules::Node JsonText::other_key(const std::vector<std::string>& names) {
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  return rules_.sequence({rules_.text("\""), other_text(sorted, 0), rules_.text("\":"), spaces()});
}

// One of some characters of a string's value, as JSON writes it.
Rules::Node JsonText::quoted(Rules& rules, const Characters& set) {
  std::vector<Rules::Node> all;
  if (const Characters raw = both(set, normal(kRaw)); !raw.empty())
    all.push_back(rules.characters(raw));
  const Characters rest = both(set, {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  for (const Range& r : rest)
    for (uint32_t c = r.first; c <= r.last; ++c) {
      std::string text = dump_json(Json(std::string(1, static_cast<char>(c))));
      all.push_back(rules.text(std::string_view(text).substr(1, text.size() - 2)));
    }
  return rules.either(all);
}

Result<Rules::Node> JsonText::pattern(std::string_view regex, bool anywhere) {
  const RegexUse use{[this](Rules& r, const Characters& set) { return quoted(r, set); },
                     rules_.repeat(rules_.call(character_), 0), anywhere};
  MC_TRY(const Rules::Node text, read_regex(rules_, regex, use));
  return rules_.sequence({rules_.text("\""), text, rules_.text("\"")});
}

Result<Rules::Node> JsonText::key_like(std::string_view regex) {
  MC_TRY(const Rules::Node name, pattern(regex, true));
  return rules_.sequence({name, rules_.text(":"), spaces()});
}

std::string JsonText::formats() {
  std::string all;
  for (const auto& [name, regex] : known_formats()) all += (all.empty() ? "" : ", ") + name;
  return all;
}

Result<Rules::Node> JsonText::format(const std::string& name) {
  for (const auto& [known, regex] : known_formats())
    if (name == known) return pattern(regex, false);
  return fail(Code::kUnsupported, "format '%s' is not supported, only %s", escape(name).c_str(),
              formats().c_str());
}

}  // namespace mc::model::grammar
