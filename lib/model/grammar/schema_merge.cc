#include "model/grammar/schema_merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"

namespace mc::model::grammar {
namespace {

constexpr int kMergeDepthMax = 64;
constexpr std::array kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};

std::optional<std::vector<std::string>> given_types(const Json& schema) {
  const Json* const type = member(schema, "type");
  if (type == nullptr) return {};
  std::vector<std::string> all;
  for (const Json& one : type->is_array() ? *type : Json::array({*type}))
    if (one.is_string()) all.push_back(one);
  return all;
}

std::optional<std::vector<Json>> values_of(const Json& schema) {
  if (schema.contains("const")) return std::vector<Json>{schema["const"]};
  if (const Json* const list = member(schema, "enum"); list != nullptr && list->is_array())
    return std::vector<Json>(list->begin(), list->end());
  return {};
}

Json both_types(const Json& a, const Json& b) {
  const auto left = given_types({{"type", a}}), right = given_types({{"type", b}});
  Json out = Json::array();
  const auto has = [](const std::vector<std::string>& list, std::string_view type) {
    return std::find(list.begin(), list.end(), type) != list.end();
  };
  for (const std::string& type : *left)
    if (has(*right, type) || (type == "integer" && has(*right, "number")))
      out.push_back(type);
    else if (type == "number" && has(*right, "integer"))
      out.push_back("integer");
  return out;
}

Result<Json> merge(const Json& a, const Json& b, const std::string& path, int depth);

Result<Json> merge_keyword(const std::string& name, const Json& a, const Json& b,
                           const std::string& path, int depth) {
  if (a == b) return a;
  const auto numbers = a.is_number() && b.is_number();
  if (name.starts_with("min") || name == "exclusiveMinimum")
    if (numbers) return a < b ? b : a;
  if (name.starts_with("max") || name == "exclusiveMaximum")
    if (numbers) return a < b ? a : b;
  if (name == "type") {
    Json types = both_types(a, b);
    if (types.empty()) return fail(Code::kInvalid, "%s: no type fits all", path.c_str());
    return types;
  }
  if (name == "required" && a.is_array() && b.is_array()) {
    Json all = a;
    for (const Json& one : b)
      if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    return all;
  }
  if (name == "items" || name == "additionalProperties") return merge(a, b, path, depth + 1);
  if (name == "properties" && a.is_object() && b.is_object()) {
    Json all = a;
    for (const auto& [of, value] : b.items()) {
      if (!all.contains(of)) {
        all[of] = value;
        continue;
      }
      MC_TRY(all[of], merge(all[of], value, path + "/properties/" + of, depth + 1));
    }
    return all;
  }
  return fail(Code::kUnsupported,
              "%s/%s is not supported where another schema for the value has it", path.c_str(),
              name.c_str());
}

// A schema that says what other members are, and one that has other members: each of these would
// have to fit both.
Result<> check_members(const Json& a, const Json& b, const std::string& path) {
  const Json* const rest = member(a, "additionalProperties");
  if (rest == nullptr || *rest == true) return {};
  const Json* const own = member(a, "properties");
  const auto knows = [&](const std::string& name) { return own != nullptr && own->contains(name); };
  if (const Json* const others = member(b, "properties"); others != nullptr && others->is_object())
    for (const auto& [name, value] : others->items())
      if (!knows(name))
        return fail(Code::kUnsupported,
                    "%s/additionalProperties is not supported where another schema has a member "
                    "'%s' that this one has not",
                    path.c_str(), escape(name).c_str());
  return {};
}

Result<Json> merge(const Json& a, const Json& b, const std::string& path, int depth) {
  if (depth > kMergeDepthMax) return fail(Code::kNoSpace, "%s is nested too deep", path.c_str());
  if (a.is_boolean()) return a.get<bool>() ? b : a;
  if (b.is_boolean()) return b.get<bool>() ? a : b;
  if (!a.is_object() || !b.is_object())
    return fail(Code::kInvalid, "%s is not an object or a boolean", path.c_str());
  MC_TRY_(check_members(a, b, path));
  MC_TRY_(check_members(b, a, path));
  Json all = Json::object();
  for (const auto& [name, value] : a.items())
    if (!is_annotation(name)) all[name] = value;
  for (const auto& [name, value] : b.items()) {
    if (is_annotation(name)) continue;
    if (!all.contains(name)) {
      all[name] = value;
      continue;
    }
    MC_TRY(all[name], merge_keyword(name, all[name], value, path, depth));
  }
  return all;
}

}  // namespace

bool is_annotation(const std::string& keyword) {
  static const std::set<std::string_view> all = {
      "$schema",         "$comment",         "$defs",   "definitions",  "title",    "description",
      "default",         "examples",         "example", "deprecated",   "readOnly", "writeOnly",
      "contentEncoding", "contentMediaType", "$id",     "discriminator"};
  return all.contains(keyword) || keyword.starts_with("x-");
}

bool is_known(const std::string& keyword) {
  static const std::set<std::string_view> all = {"$ref",
                                                 "allOf",
                                                 "anyOf",
                                                 "oneOf",
                                                 "const",
                                                 "enum",
                                                 "type",
                                                 "properties",
                                                 "required",
                                                 "additionalProperties",
                                                 "items",
                                                 "prefixItems",
                                                 "minItems",
                                                 "maxItems",
                                                 "uniqueItems",
                                                 "minLength",
                                                 "maxLength",
                                                 "pattern",
                                                 "format",
                                                 "minimum",
                                                 "maximum",
                                                 "exclusiveMinimum",
                                                 "exclusiveMaximum",
                                                 "multipleOf",
                                                 "not",
                                                 "patternProperties",
                                                 "minProperties"};
  return all.contains(keyword);
}

bool is_type(const std::string& name) {
  return std::find(kTypes.begin(), kTypes.end(), name) != kTypes.end();
}

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "integer")
    return value.is_number_integer() ||
           (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
  if (type == "number") return value.is_number();
  return type == value.type_name();
}

bool only_annotations(const Json& schema) {
  for (const auto& [name, value] : schema.items())
    if (!is_annotation(name)) return false;
  return true;
}

Result<Json> merge_schemas(const Json& a, const Json& b, const std::string& path) {
  return merge(a, b, path, 0);
}

bool apart(const Json& a, const Json& b) {
  if (a == false || b == false) return true;
  if (!a.is_object() || !b.is_object()) return false;
  const auto values = values_of(a), other_values = values_of(b);
  if (values && other_values)
    return std::none_of(values->begin(), values->end(), [&](const Json& v) {
      return std::find(other_values->begin(), other_values->end(), v) != other_values->end();
    });
  const auto fits_a_type = [](const std::vector<Json>& some,
                              const std::vector<std::string>& types) {
    return std::any_of(some.begin(), some.end(), [&](const Json& v) {
      return std::any_of(types.begin(), types.end(),
                         [&](const std::string& type) { return is_of_type(v, type); });
    });
  };
  const auto types = given_types(a), other_types = given_types(b);
  if (values && other_types) return !fits_a_type(*values, *other_types);
  if (other_values && types) return !fits_a_type(*other_values, *types);
  if (!types || !other_types) return false;
  if (both_types(a["type"], b["type"]).empty()) return true;
  if (*types != std::vector<std::string>{"object"} || *other_types != *types) return false;
  const auto requires_it = [](const Json& schema, const std::string& name) {
    const Json* const list = member(schema, "required");
    return list != nullptr && list->is_array() &&
           std::find(list->begin(), list->end(), Json(name)) != list->end();
  };
  const Json* const mine = member(a, "properties");
  const Json* const theirs = member(b, "properties");
  if (mine == nullptr || theirs == nullptr || !mine->is_object() || !theirs->is_object())
    return false;
  for (const auto& [name, schema] : mine->items()) {
    if (!theirs->contains(name) || !requires_it(a, name) || !requires_it(b, name)) continue;
    const Json& other = (*theirs)[name];
    if (values_of(schema) && values_of(other) && apart(schema, other)) return true;
  }
  return false;
}

}  // namespace mc::model::grammar
