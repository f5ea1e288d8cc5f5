// What the values of a type are: bounds, lengths, elements, members.
#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "base/json.h"
#include "base/units.h"
#include "model/grammar/json_schema_impl.h"
#include "model/grammar/schema_merge.h"

namespace mc::model::grammar {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr int64_t kCountMax = 100'000;  // of characters and elements

const Json kAnything = true;

// Which keywords belong to which type.
const std::map<std::string, std::vector<std::string>>& keywords_of() {
  static const std::map<std::string, std::vector<std::string>> all = {
      {"object",
       {"properties", "required", "additionalProperties", "patternProperties", "minProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
      {"string", {"minLength", "maxLength", "pattern", "format"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
  return all;
}

}  // namespace

Result<SchemaReader::Node> SchemaReader::read_values(const Json& schema, const std::string& keyword,
                                                     const std::string& path) {
  const Json& given = schema[keyword];
  if (keyword == "enum" && (!given.is_array() || given.empty()))
    return wrong(path, keyword, "an array of values");
  for (const auto& [name, value] : schema.items())
    if (name != keyword && name != "type" && !is_annotation(name))
      return unsupported(path, name, " beside " + keyword);
  std::vector<std::string> types;
  if (schema.contains("type")) {
    MC_TRY(types, types_of(schema, path));
  }
  std::vector<std::string> texts;
  for (const Json& value : keyword == "const" ? Json::array({given}) : given)
    if (types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
          return is_of_type(value, type);
        }))
      texts.push_back(dump_json(value));
  return rules_.texts(std::move(texts));
}

Result<std::vector<std::string>> SchemaReader::types_of(const Json& schema,
                                                        const std::string& path) {
  std::vector<std::string> types;
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    for (const Json& one : type.is_array() ? type : Json::array({type})) {
      if (!one.is_string() || !is_type(one.get_ref<const std::string&>()))
        return wrong(path, "type", "a type or an array of types");
      types.push_back(one);
    }
    if (types.empty()) return wrong(path, "type", "a type or an array of types");
    if (std::find(types.begin(), types.end(), "number") != types.end())
      std::erase(types, "integer");
    return types;
  }
  for (const auto& [type, names] : keywords_of())
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return schema.contains(name); }))
      types.push_back(type);
  if (types.empty()) types = {"object", "array", "string", "number", "boolean", "null"};
  return types;
}

Result<SchemaReader::Node> SchemaReader::read_type(const std::string& type, const Json& schema,
                                                   const std::string& path) {
  if (type == "null") return rules_.text("null");
  if (type == "boolean") return rules_.either({rules_.text("true"), rules_.text("false")});
  if (type == "string") return read_string(schema, path);
  if (type == "array") return read_array(schema, path);
  if (type == "object") return read_object(schema, path);
  MC_TRY(const Bounds bounds, read_bounds(schema, path));
  if (!schema.contains("multipleOf"))
    return type == "integer" ? text_.integer(bounds) : text_.number(bounds);
  const auto node = text_.multiples_of(schema["multipleOf"], bounds);
  if (!node)
    return fail(node.error().code, "%s/multipleOf %s", path.c_str(), node.error().what.c_str());
  return *node;
}

Result<Bounds> SchemaReader::read_bounds(const Json& schema, const std::string& path) {
  Bounds b;
  const auto take = [&](const char* name, bool exclusive) -> Result<> {
    if (!schema.contains(name)) return {};
    const Json& j = schema[name];
    if (!j.is_number()) return wrong(path, name, "a number");
    const auto d = decimal_of(j);
    if (!d) return fail(d.error().code, "%s/%s: %s", path.c_str(), name, d.error().what.c_str());
    const bool low = std::string_view(name).ends_with("inimum");
    std::optional<Decimal>& bound = low ? b.low : b.high;
    const bool tighter = !bound || (low ? less(*bound, *d) : less(*d, *bound));
    if (!tighter && !(exclusive && *bound == *d)) return {};
    bound = *d;
    (low ? b.above_low : b.below_high) = exclusive;
    return {};
  };
  MC_TRY_(take("minimum", false));
  MC_TRY_(take("maximum", false));
  MC_TRY_(take("exclusiveMinimum", true));
  MC_TRY_(take("exclusiveMaximum", true));
  return b;
}

Result<uint32_t> SchemaReader::count(const Json& schema, const char* name, uint32_t fallback,
                                     const std::string& path) {
  if (!schema.contains(name)) return fallback;
  const Json& j = schema[name];
  const bool whole = j.is_number() && std::floor(j.get<double>()) == j.get<double>();  // 2.0 too
  if (!whole || j < 0) return wrong(path, name, "a whole number of 0 or more");
  if (j > kCountMax)
    return unsupported(path, name, strf(" over %lld", static_cast<long long>(kCountMax)));
  return j.get<uint32_t>();
}

Result<SchemaReader::Node> SchemaReader::read_string(const Json& schema, const std::string& path) {
  const bool lengths = schema.contains("minLength") || schema.contains("maxLength");
  const bool pattern = schema.contains("pattern"), format = schema.contains("format");
  if (pattern && format) return unsupported(path, "format", " beside pattern");
  if (lengths && (pattern || format))
    return unsupported(
        path, schema.contains("minLength") ? "minLength" : "maxLength",
        pattern ? " beside pattern: write it as a repetition there" : " beside format");
  for (const char* name : {"pattern", "format"}) {
    if (!schema.contains(name)) continue;
    if (!schema[name].is_string()) return wrong(path, name, "a string");
    const std::string text = schema[name];
    const auto node = pattern ? text_.pattern(text, true) : text_.format(text);
    if (!node)
      return fail(node.error().code, "%s/%s: %s", path.c_str(), name, node.error().what.c_str());
    return *node;
  }
  MC_TRY(const uint32_t least, count(schema, "minLength", 0, path));
  MC_TRY(const uint32_t most, count(schema, "maxLength", Rules::kNoEnd, path));
  return text_.string(least, most);
}

Result<SchemaReader::Node> SchemaReader::read_array(const Json& schema, const std::string& path) {
  MC_TRY(const uint32_t least, count(schema, "minItems", 0, path));
  MC_TRY(const uint32_t most, count(schema, "maxItems", Rules::kNoEnd, path));
  if (schema.contains("uniqueItems") && schema["uniqueItems"] != false && most > 1)
    return read_unique(schema, least, most, path);
  std::vector<Node> first;
  if (schema.contains("prefixItems")) {
    const Json& list = schema["prefixItems"];
    if (!list.is_array()) return wrong(path, "prefixItems", "an array of schemas");
    for (size_t i = 0; i < list.size(); ++i)
      first.push_back(later(list[i], path + "/prefixItems/" + std::to_string(i)));
  }
  const bool told = schema.contains("items");
  if (told && schema["items"].is_array())
    return unsupported(path, "items", " as an array: write prefixItems");
  Node rest = told ? later(schema["items"], path + "/items") : text_.any();
  // Nothing beyond the first ones, unless it is needed.
  if (!told && !first.empty() && least <= first.size()) rest = rules_.never();
  return elements(first, rest, least, most);
}

Result<SchemaReader::Node> SchemaReader::read_unique(const Json& schema, uint32_t least,
                                                     uint32_t most, const std::string& path) {
  const Json* const items = member(schema, "items");
  const Json* const values = items == nullptr ? nullptr : member(*items, "enum");
  Json rest = items == nullptr ? Json::object() : *items;
  if (rest.is_object()) rest.erase("enum");
  std::vector<Json> all;
  if (values != nullptr && values->is_array())
    for (const Json& value : *values)
      if (all.size() <= kUniqueMax && std::find(all.begin(), all.end(), value) == all.end())
        all.push_back(value);
  if (all.empty() || all.size() > kUniqueMax || !only_annotations(rest) ||
      schema.contains("prefixItems"))
    return unsupported(path, "uniqueItems",
                       strf(" but beside a maxItems of 1, or items that are an enum of %zu "
                            "values at most",
                            kUniqueMax));
  const size_t n = all.size();
  // By how many are written: what may follow from a value on.
  std::vector<Node> after(n + 1);
  for (size_t c = 0; c <= n; ++c)
    after[c] = c >= least && c <= most ? rules_.empty() : rules_.never();
  for (size_t i = n; i-- > 0 && !rules_.full();)
    for (size_t c = 0; c <= i; ++c) {
      const Node value = rules_.text(dump_json(all[i]));
      const Node one = c == 0 ? value : rules_.sequence({text_.comma(), value});
      after[c] = rules_.named("distinct elements",
                              rules_.either({after[c], rules_.sequence({one, after[c + 1]})}));
    }
  return text_.array_of(after[0]);
}

SchemaReader::Node SchemaReader::elements(const std::vector<Node>& first, Node rest, uint32_t least,
                                          uint32_t most) {
  const auto n = static_cast<uint32_t>(first.size());
  const auto up = [](uint32_t a, uint32_t b) { return a > b ? a - b : 0; };
  const uint32_t more = most == Rules::kNoEnd ? most : up(most, std::max(n, 1u));
  const auto behind = [&](Node one) { return rules_.sequence({text_.comma(), one}); };
  Node tail = rules_.repeat(behind(rest), up(least, std::max(n, 1u)), more);
  if (n == 0) tail = rules_.sequence({rest, tail});
  // From the last of the first ones on: each may be where the array ends.
  for (uint32_t i = n; i-- > 0;) {
    if (i >= most) {
      tail = rules_.empty();
      continue;
    }
    Node after = i + 1 < n && i + 1 >= most ? rules_.empty() : tail;
    if (i + 1 >= least && i + 1 < n && i + 1 < most) after = rules_.maybe(tail);
    tail = rules_.named("elements", rules_.sequence({i == 0 ? first[i] : behind(first[i]), after}));
  }
  if (most == 0) return text_.array_of(rules_.empty());
  return text_.array_of(least == 0 ? rules_.maybe(tail) : tail);
}

Result<const Json*> SchemaReader::with_patterns(const std::string& name, const Json* value,
                                                const std::string& path, bool& matched) {
  for (const NamePattern& p : patterns_) {
    MC_TRY(const bool takes, p.takes(name));
    if (!takes) continue;
    matched = true;
    if (++spent_.merges > kMergesMax) return too_many(path);
    MC_TRY(value, merge(*value, *p.schema, path));
  }
  return value;
}

Result<SchemaReader::Node> SchemaReader::read_object(const Json& schema, const std::string& path) {
  std::vector<std::string> names, required;
  Json none = Json::object();
  const Json& properties = schema.contains("properties") ? schema["properties"] : none;
  if (!properties.is_object()) return wrong(path, "properties", "an object of schemas");
  if (schema.contains("required")) {
    const Json& list = schema["required"];
    if (!list.is_array()) return wrong(path, "required", "an array of names");
    for (const Json& name : list) {
      if (!name.is_string()) return wrong(path, "required", "an array of names");
      required.push_back(name);
    }
  }
  const std::set<std::string> needed(required.begin(), required.end());
  // A member's name may come twice, so that two members need not be two names.
  MC_TRY(const uint32_t least, count(schema, "minProperties", 0, path));
  if (least > std::max<size_t>(needed.size(), 1))
    return unsupported(path, "minProperties", " over 1 and over the number of required members");
  MC_TRY(patterns_, read_name_patterns(schema, path));
  const bool told = schema.contains("additionalProperties");
  const std::string rest_path = path + "/additionalProperties";
  const bool others = told ? schema["additionalProperties"] != false : properties.empty();
  const Node other_value =
      told && others ? later(schema["additionalProperties"], rest_path) : text_.any();
  std::vector<Member> members;
  for (const auto& [name, value] : properties.items()) {
    if (name.size() > kNameBytesMax)
      return fail(Code::kUnsupported, "%s/properties has a name of %zu bytes, want %zu at most",
                  path.c_str(), name.size(), kNameBytesMax);
    names.push_back(name);
    bool matched = false;
    const std::string at = path + "/properties/" + name;
    MC_TRY(const Json* const whole, with_patterns(name, &value, at, matched));
    const Node of = later(*whole, at);
    members.push_back({rules_.sequence({text_.key(name), of}), needed.contains(name)});
  }
  for (const std::string& name : needed) {
    if (properties.contains(name)) continue;
    if (name.size() > kNameBytesMax) return wrong(path, "required", "an array of short names");
    names.push_back(name);
    const bool allowed = !told || others;
    bool matched = false;
    MC_TRY(const Json* const whole, with_patterns(name, &kAnything, path, matched));
    const Node of = matched ? later(*whole, path + "/patternProperties") : other_value;
    members.push_back(
        {allowed || matched ? rules_.sequence({text_.key(name), of}) : rules_.never(), true});
  }
  if (!patterns_.empty()) return members_by_pattern(members, least > 0, path);
  if (!others) return members_of(members, rules_.never(), least > 0);
  return members_of(members, rules_.sequence({text_.other_key(names), other_value}), least > 0);
}

Result<SchemaReader::Node> SchemaReader::members_by_pattern(const std::vector<Member>& members,
                                                            bool some, const std::string& path) {
  if (!members.empty()) return members_of(members, rules_.never(), some);
  if (patterns_.size() > 1)
    return unsupported(path, "patternProperties", " of several patterns without properties");
  MC_TRY(const Node key, text_.key_like(patterns_[0].text));
  const Node value = later(*patterns_[0].schema, path + "/patternProperties");
  return members_of({}, rules_.sequence({key, value}), some);
}

SchemaReader::Node SchemaReader::members_of(const std::vector<Member>& members, Node other,
                                            bool some) {
  const auto behind = [&](Node one) { return rules_.sequence({text_.comma(), one}); };
  // What may follow once there is a member, and what may begin: of the members from i on.
  Node rest = rules_.named("other members", rules_.repeat(behind(other), 0));
  const Node others = rules_.sequence({other, rest});
  Node all = some ? others : rules_.maybe(others);
  for (size_t i = members.size(); i-- > 0 && !rules_.full();) {
    const auto& [node, required] = members[i];
    const Node begun = rules_.sequence({node, rest});
    all = required ? begun : rules_.either({begun, all});
    rest = rules_.named(
        "members", rules_.sequence({required ? behind(node) : rules_.maybe(behind(node)), rest}));
    if (!required && i > 0) all = rules_.named("members", all);
  }
  return text_.object_of(all);
}

}  // namespace mc::model::grammar
