#include "model/grammar/schema_not.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "model/grammar/schema_merge.h"

namespace mc::model::grammar {
namespace {

bool holds(const Json& list, const Json& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}
Json as_list(const Json& j) { return j.is_array() ? j : Json::array({j}); }

// Null: what is left cannot be told.
Json not_values(Json rest, const Json& values) {
  const bool one = rest.contains("const");
  if (one || rest.contains("enum")) {
    const std::set<Json> excluded(values.begin(), values.end());
    Json left = Json::array();
    for (const Json& value : one ? Json::array({rest["const"]}) : rest["enum"])
      if (!excluded.contains(value)) left.push_back(value);
    if (left.empty()) return false;
    rest.erase("const");
    rest["enum"] = std::move(left);
    return rest;
  }
  if (!rest.contains("type")) return nullptr;
  for (const Json& value : values)
    for (const Json& type : as_list(rest["type"]))
      if (type.is_string() && is_of_type(value, type.get_ref<const std::string&>())) return nullptr;
  return rest;
}

Json not_types(Json rest, const Json& types) {
  if (!rest.contains("type")) {
    if (!only_annotations(rest)) return nullptr;
    rest["type"] = {"object", "array", "string", "number", "boolean", "null"};
  }
  Json left = Json::array();
  for (const Json& type : as_list(rest["type"])) {
    if (holds(types, type) || (type == "integer" && holds(types, "number"))) continue;
    if (type == "number" && holds(types, "integer")) return nullptr;
    left.push_back(type);
  }
  if (left.empty()) return false;
  rest["type"] = std::move(left);
  return rest;
}

// What is no object has the member no less than the excluded schema asks for.
Json not_member(Json rest, const std::string& name) {
  if (rest.contains("properties") && !rest["properties"].is_object())
    return rest;  // refused by name when it is read
  if (rest.contains("const") || rest.contains("enum")) return nullptr;
  if (rest.contains("type") && !holds(as_list(rest["type"]), "object")) return false;
  if (const Json* const required = member(rest, "required"))
    if (holds(as_list(*required), name)) return false;
  rest["type"] = "object";
  if (!rest.contains("properties") && !rest.contains("additionalProperties"))
    rest["additionalProperties"] = true;
  rest["properties"][name] = false;
  return rest;
}

}  // namespace

Result<Json> without_not(const Json& schema, const std::string& path) {
  const Json& inner = schema["not"];
  Json rest = schema;
  rest.erase("not");
  if (inner == false) return rest;
  if (inner == true) return Json(false);
  if (!inner.is_object())
    return fail(Code::kInvalid, "%s/not is not an object or a boolean", path.c_str());
  Json said = Json::object();
  for (const auto& [name, value] : inner.items())
    if (!is_annotation(name)) said[name] = value;
  if (said.empty()) return Json(false);
  Json made;
  if (said.size() == 1) {
    const std::string& keyword = said.items().begin().key();
    const Json& value = said.items().begin().value();
    if (keyword == "const") made = not_values(std::move(rest), Json::array({value}));
    if (keyword == "enum" && value.is_array()) made = not_values(std::move(rest), value);
    if (keyword == "type") made = not_types(std::move(rest), as_list(value));
    if (keyword == "required" && value.is_array() && value.size() == 1 && value[0].is_string())
      made = not_member(std::move(rest), value[0]);
  }
  if (made.is_null())
    return fail(Code::kUnsupported,
                "%s/not is not supported but for types, values beside an enum or another type, and "
                "one required member",
                path.c_str());
  return made;
}

}  // namespace mc::model::grammar
