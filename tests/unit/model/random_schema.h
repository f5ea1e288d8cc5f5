// Draws JSON schemas of the keywords that constrained answers support.
#pragma once
#include <algorithm>
#include <string>

#include "base/json.h"
#include "base/random.h"

namespace mc::test {

class RandomSchema {
 public:
  explicit RandomSchema(Random& random) : random_(random) {}
  Json draw() {
    Json s = schema(0);
    if (!s.is_object()) s = Json{{"anyOf", Json::array({s, {{"type", "null"}}})}};
    if (refers_) s["$defs"] = {{"list", list_}};
    return s;
  }

 private:
  uint64_t below(uint64_t n) { return random_.below(n); }
  bool chance(double p) { return random_.chance(p); }
  std::string name() {
    static const char* const kNames[] = {"a", "ab", "name", "été", "quote\"d", "x y", "items"};
    return kNames[below(7)];
  }
  Json value() {
    switch (below(5)) {
      case 0: return below(100);
      case 1: return "text \\ \"" + name();
      case 2: return nullptr;
      case 3: return Json::array({1, name(), true});
      default: return Json{{name(), 1.5}};
    }
  }
  Json number() {
    if (chance(0.15)) return Json{{"multipleOf", 2 + below(20)}};
    Json s = {{"type", chance(0.5) ? "integer" : "number"}};
    const double low = static_cast<double>(below(40)) / (chance(0.5) ? 1 : 4) - 5;
    if (chance(0.5)) s[chance(0.3) ? "exclusiveMinimum" : "minimum"] = low;
    if (chance(0.5)) s[chance(0.3) ? "exclusiveMaximum" : "maximum"] = low + 2.25;
    return s;
  }
  Json string() {
    static const char* const kPatterns[] = {"^[a-z]{2,5}$", "^(foo|bar)+[0-9]$", "^x[^\"]?y",
                                            "^\\d+$"};
    Json s = {{"type", "string"}};
    if (chance(0.3)) {
      s["pattern"] = kPatterns[below(4)];
    } else if (chance(0.2)) {
      s["format"] = chance(0.5) ? "date-time" : "uuid";
    } else if (chance(0.6)) {
      const uint64_t least = below(4);
      if (least > 0) s["minLength"] = least;
      s["maxLength"] = least + below(9);
    }
    return s;
  }
  Json array(int depth) {
    Json s = {{"type", "array"}};
    if (chance(0.15)) {
      s["uniqueItems"] = true;
      s["items"] = {{"enum", Json::array({1, "1", nullptr, Json::array()})}};
      s["minItems"] = below(5);
      return s;
    }
    const uint64_t first = chance(0.3) ? 1 + below(3) : 0;
    for (uint64_t i = 0; i < first; ++i) s["prefixItems"].push_back(schema(depth + 1));
    if (first == 0 || chance(0.4)) s["items"] = schema(depth + 1);
    const uint64_t least = below(3);
    if (chance(0.5)) s["minItems"] = least;
    if (chance(0.7)) s["maxItems"] = least + below(4);
    return s;
  }
  Json object(int depth) {
    Json s = {{"type", "object"}};
    if (chance(0.15)) {
      s["patternProperties"] = {{"^[a-c]+$", schema(depth + 1)}};
      if (chance(0.5)) s["additionalProperties"] = false;
      return s;
    }
    const uint64_t members = below(5);
    for (uint64_t i = 0; i < members; ++i) {
      const std::string of = name();
      s["properties"][of] = schema(depth + 1);
      if (!chance(0.5)) continue;
      Json required = s.value("required", Json::array());
      if (std::find(required.begin(), required.end(), Json(of)) == required.end())
        required.push_back(of);
      s["required"] = required;
    }
    if (chance(0.3)) s["additionalProperties"] = chance(0.5) ? Json(false) : schema(depth + 2);
    return s;
  }
  Json schema(int depth) {
    const bool leaf = depth > 3;
    switch (below(leaf ? 5 : 11)) {
      case 0: return number();
      case 1: return string();
      case 2:
        if (chance(0.3)) return Json{{"not", {{"type", Json::array({"object", "array"})}}}};
        return Json{{"type", "boolean"}};
      case 3: return Json{{"enum", Json::array({value(), value()})}};
      case 4: return Json{{"const", value()}};
      case 5: return array(depth);
      case 6: return Json{{"anyOf", Json::array({schema(depth + 1), schema(depth + 1)})}};
      case 7: refers_ = true; return Json{{"$ref", "#/$defs/list"}, {"description", "a list"}};
      case 8:
        return Json{{"allOf", Json::array({Json{{"properties", {{"a", string()}}}},
                                           Json{{"required", Json::array({"zz"})}}})},
                    {"title", "both"}};
      default: return object(depth);
    }
  }

  Random& random_;
  bool refers_ = false;
  const Json list_ = {
      {"type", "object"},
      {"properties", {{"head", {{"type", "integer"}}}, {"tail", {{"$ref", "#/$defs/list"}}}}},
      {"required", Json::array({"head"})},
      {"additionalProperties", false}};
};

}  // namespace mc::test
