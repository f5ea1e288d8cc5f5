// Whether a JSON value fits a JSON schema, written from the specification alone, for tests: it
// shares nothing with lib/model/grammar.
#pragma once
#include <algorithm>
#include <cmath>
#include <regex>
#include <string>

#include "base/json.h"

namespace mc::test {

// Discarded where it is no JSON. An object may have a name twice: no schema forbids it.
inline Json parse_value(const std::string& text) { return Json::parse(text, nullptr, false); }

class SchemaCheck {
 public:
  explicit SchemaCheck(const Json& root) : root_(root) {}
  bool fits(const Json& v) const { return fits(v, root_, 0); }

 private:
  static bool typed(const Json& v, const std::string& type) {
    if (type == "integer") return v.is_number() && std::floor(v.get<double>()) == v.get<double>();
    return type == v.type_name();
  }
  static size_t characters(const std::string& s) {
    return static_cast<size_t>(
        std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
  }
  const Json& find(const std::string& ref) const {
    if (ref == "#") return root_;
    return root_.at(Json::json_pointer(ref.substr(1)));
  }

  bool fits(const Json& v, const Json& s, int depth) const {
    if (depth > 200) return false;
    if (s.is_boolean()) return s.get<bool>();
    const auto in = [&](const Json& inner) { return fits(v, inner, depth + 1); };
    if (s.contains("$ref") && !in(find(s["$ref"]))) return false;
    if (s.contains("const") && v != s["const"]) return false;
    if (s.contains("enum") && std::find(s["enum"].begin(), s["enum"].end(), v) == s["enum"].end())
      return false;
    if (s.contains("type")) {
      const Json types = s["type"].is_array() ? s["type"] : Json::array({s["type"]});
      if (std::none_of(types.begin(), types.end(), [&](const Json& t) { return typed(v, t); }))
        return false;
    }
    if (s.contains("not") && in(s["not"])) return false;
    if (s.contains("allOf") && !std::all_of(s["allOf"].begin(), s["allOf"].end(), in)) return false;
    if (s.contains("anyOf") && !std::any_of(s["anyOf"].begin(), s["anyOf"].end(), in)) return false;
    if (s.contains("oneOf") && std::count_if(s["oneOf"].begin(), s["oneOf"].end(), in) != 1)
      return false;
    if (v.is_number() && !number_fits(v.get<double>(), s)) return false;
    if (v.is_string() && !string_fits(v, s)) return false;
    if (v.is_array() && !array_fits(v, s, depth)) return false;
    return !v.is_object() || object_fits(v, s, depth);
  }
  static bool number_fits(double v, const Json& s) {
    if (s.contains("multipleOf") && std::fmod(v, s["multipleOf"].get<double>()) != 0) return false;
    if (s.contains("minimum") && v < s["minimum"].get<double>()) return false;
    if (s.contains("maximum") && v > s["maximum"].get<double>()) return false;
    if (s.contains("exclusiveMinimum") && v <= s["exclusiveMinimum"].get<double>()) return false;
    return !s.contains("exclusiveMaximum") || v < s["exclusiveMaximum"].get<double>();
  }
  static bool string_fits(const std::string& v, const Json& s) {
    if (s.contains("minLength") && characters(v) < s["minLength"].get<size_t>()) return false;
    if (s.contains("maxLength") && characters(v) > s["maxLength"].get<size_t>()) return false;
    return !s.contains("pattern") || std::regex_search(v, std::regex(std::string(s["pattern"])));
  }
  bool array_fits(const Json& v, const Json& s, int depth) const {
    if (s.contains("minItems") && v.size() < s["minItems"].get<size_t>()) return false;
    if (s.contains("maxItems") && v.size() > s["maxItems"].get<size_t>()) return false;
    if (s.contains("uniqueItems"))
      for (size_t i = 0; i < v.size(); ++i)
        if (std::find(v.begin(), v.begin() + static_cast<ptrdiff_t>(i), v[i]) !=
            v.begin() + static_cast<ptrdiff_t>(i))
          return false;
    const size_t first = s.contains("prefixItems") ? s["prefixItems"].size() : 0;
    for (size_t i = 0; i < v.size(); ++i) {
      if (i < first && !fits(v[i], s["prefixItems"][i], depth + 1)) return false;
      if (i >= first && s.contains("items") && !fits(v[i], s["items"], depth + 1)) return false;
    }
    return true;
  }
  bool object_fits(const Json& v, const Json& s, int depth) const {
    if (s.contains("required"))
      for (const Json& name : s["required"])
        if (!v.contains(std::string(name))) return false;
    for (const auto& [name, value] : v.items()) {
      const bool known = s.contains("properties") && s["properties"].contains(name);
      if (known && !fits(value, s["properties"][name], depth + 1)) return false;
      bool like = false;
      if (s.contains("patternProperties"))
        for (const auto& [pattern, schema] : s["patternProperties"].items()) {
          if (!std::regex_search(name, std::regex(pattern))) continue;
          like = true;
          if (!fits(value, schema, depth + 1)) return false;
        }
      if (!known && !like && s.contains("additionalProperties") &&
          !fits(value, s["additionalProperties"], depth + 1))
        return false;
    }
    return true;
  }

  const Json& root_;
};

}  // namespace mc::test
