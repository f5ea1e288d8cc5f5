#include "model/grammar/json_schema.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/json.h"
#include "base/units.h"
#include "model/grammar/json_schema_impl.h"
#include "model/grammar/schema_merge.h"
#include "model/grammar/schema_not.h"

namespace mc::model::grammar {
namespace {

constexpr size_t kValuesMax = 1 << 16;  // schemas that are read, copies too

}  // namespace

SchemaReader::SchemaReader(Rules& rules, const Json& root, SchemaWork& spent)
    : rules_(rules), root_(root), text_(rules), spent_(spent) {}
SchemaReader::~SchemaReader() = default;

Result<Rules::Rule> SchemaReader::run() {
  const Rules::Rule root = rules_.declare("the schema");
  rules_of_["#"] = root;
  work_.push_back({root, &root_, "#"});
  while (!work_.empty() && !rules_.full()) {
    const Work w = work_.front();
    work_.pop_front();
    MC_TRY(const Rules::Node body, read(*w.schema, w.path));
    rules_.define(w.rule, body);
  }
  return root;
}

Failure SchemaReader::wrong(const std::string& path, const std::string& keyword, const char* want) {
  return fail(Code::kInvalid, "%s/%s is not %s", path.c_str(), escape(keyword).c_str(), want);
}

Failure SchemaReader::unsupported(const std::string& path, const std::string& keyword,
                                  const std::string& but) {
  return fail(Code::kUnsupported, "%s/%s is not supported%s", path.c_str(), escape(keyword).c_str(),
              but.c_str());
}

SchemaReader::Node SchemaReader::later(const Json& schema, const std::string& path) {
  const Rules::Rule rule = rules_.declare(path);
  work_.push_back({rule, &schema, path});
  return rules_.call(rule);
}

Result<SchemaReader::Node> SchemaReader::read(const Json& schema, const std::string& path) {
  if (++spent_.schemas > kValuesMax)
    return fail(Code::kNoSpace, "%s: over %zu schemas, with those of combinations", path.c_str(),
                kValuesMax);
  if (schema.is_boolean()) return schema.get<bool>() ? text_.any() : rules_.never();
  if (!schema.is_object())
    return fail(Code::kInvalid, "%s is not an object or a boolean", path.c_str());
  MC_TRY_(check_keywords(schema, path));
  if (schema.contains("$ref")) return read_ref(schema, path);
  if (schema.contains("allOf")) return read_all_of(schema, path);
  for (const char* some : {"anyOf", "oneOf"})
    if (schema.contains(some)) return read_some_of(schema, some, path);
  if (schema.contains("not")) {
    MC_TRY(Json rest, without_not(schema, path));
    MC_TRY(const Json* const kept, keep(std::move(rest), path));
    return later(*kept, path);
  }
  if (schema.contains("const")) return read_values(schema, "const", path);
  if (schema.contains("enum")) return read_values(schema, "enum", path);
  MC_TRY(const std::vector<std::string> types, types_of(schema, path));
  std::vector<Node> all;
  for (const std::string& type : types) {
    MC_TRY(const Node one, read_type(type, schema, path));
    all.push_back(one);
  }
  return rules_.either(all);
}

Result<> SchemaReader::check_keywords(const Json& schema, const std::string& path) {
  for (const auto& [name, value] : schema.items()) {
    if (is_annotation(name)) continue;
    if (!is_known(name)) return unsupported(path, name);
  }
  return {};
}

Result<const Json*> SchemaReader::target(const Json& schema, const std::string& path) {
  const Json& ref = schema["$ref"];
  if (!ref.is_string()) return wrong(path, "$ref", "a string");
  const auto& text = ref.get_ref<const std::string&>();
  if (text != "#" && !text.starts_with("#/"))
    return unsupported(path, "$ref", ": '" + escape(text) + "' is not within the schema");
  const Json* at = &root_;
  for (size_t i = 1; i < text.size();) {
    const size_t end = std::min(text.find('/', i + 1), text.size());
    const std::string name = unescaped(text.substr(i + 1, end - i - 1));
    const Json* const inner = at->is_object() ? member(*at, name.c_str()) : nullptr;
    if (at->is_array() && !name.empty() && name.size() < 6 &&
        name.find_first_not_of("0123456789") == std::string::npos &&
        static_cast<size_t>(std::stoi(name)) < at->size())
      at = &(*at)[static_cast<size_t>(std::stoi(name))];
    else if (inner != nullptr)
      at = inner;
    else
      return fail(Code::kInvalid, "%s/$ref: the schema has no '%s'", path.c_str(),
                  escape(text).c_str());
    i = end;
  }
  return at;
}

std::string SchemaReader::unescaped(const std::string& part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    const std::string_view rest = std::string_view(part).substr(i);
    const auto code = [&](std::string_view from) { return rest.starts_with(from); };
    if (code("~1") || code("%2F") || code("%2f"))
      out += '/';
    else if (code("~0"))
      out += '~';
    else if (code("%25"))
      out += '%';
    else if (code("%24"))
      out += '$';
    else {
      out += part[i];
      continue;
    }
    i += part[i] == '~' ? 1 : 2;
  }
  return out;
}

Result<SchemaReader::Node> SchemaReader::read_ref(const Json& schema, const std::string& path) {
  MC_TRY(const Json* const to, target(schema, path));
  Json others = schema;
  others.erase("$ref");
  if (!only_annotations(others)) {
    if (++spent_.merges > kMergesMax) return too_many(path);
    MC_TRY(const Json* const whole, merge(*to, others, path));
    return later(*whole, path);
  }
  const std::string& name = schema["$ref"].get_ref<const std::string&>();
  const auto known = rules_of_.find(name);
  if (known != rules_of_.end()) return rules_.call(known->second);
  const Rules::Rule rule = rules_.declare(name);
  rules_of_.emplace(name, rule);
  work_.push_back({rule, to, name});
  return rules_.call(rule);
}

Failure SchemaReader::too_many(const std::string& path) {
  return fail(Code::kNoSpace, "%s: over %zu combinations of schemas", path.c_str(), kMergesMax);
}

Result<const Json*> SchemaReader::merge(const Json& a, const Json& b, const std::string& path) {
  MC_TRY(Json made, merge_schemas(a, b, path));
  return keep(std::move(made), path);
}

Result<const Json*> SchemaReader::keep(Json made, const std::string& path) {
  spent_.copied += dump_json(made).size();
  if (spent_.copied > kCopiedMax) return too_many(path);
  kept_.push_back(std::move(made));
  return &kept_.back();
}

Result<SchemaReader::Node> SchemaReader::read_all_of(const Json& schema, const std::string& path) {
  const Json& list = schema["allOf"];
  if (!list.is_array() || list.empty()) return wrong(path, "allOf", "an array of schemas");
  Json rest = schema;
  rest.erase("allOf");
  if (list.size() == 1 && only_annotations(rest)) return later(list[0], path + "/allOf/0");
  kept_.push_back(std::move(rest));
  const Json* all = &kept_.back();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = path + "/allOf/" + std::to_string(i);
    const Json* one = &list[i];
    for (int hops = 0; one->is_object() && one->contains("$ref"); ++hops) {
      if (hops > kHopsMax) return fail(Code::kInvalid, "%s/$ref refers to itself", at.c_str());
      Json others = *one;
      others.erase("$ref");
      MC_TRY(const Json* const to, target(*one, at));
      one = to;
      if (only_annotations(others)) continue;
      if (++spent_.merges > kMergesMax) return too_many(path);
      MC_TRY(one, merge(*to, others, at));
    }
    if (++spent_.merges > kMergesMax) return too_many(path);
    MC_TRY(all, merge(*all, *one, at));
  }
  return later(*all, path);
}

Result<SchemaReader::Node> SchemaReader::read_some_of(const Json& schema, const char* some,
                                                      const std::string& path) {
  const Json& list = schema[some];
  if (!list.is_array() || list.empty()) return wrong(path, some, "an array of schemas");
  Json rest = schema;
  rest.erase(some);
  const bool alone = only_annotations(rest);
  std::vector<const Json*> each;
  std::vector<Node> all;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = path + "/" + some + "/" + std::to_string(i);
    const Json* one = &list[i];
    if (!alone) {
      const Json* from = one;
      for (int hops = 0; from->is_object() && from->contains("$ref"); ++hops) {
        if (hops > kHopsMax) return fail(Code::kInvalid, "%s/$ref refers to itself", at.c_str());
        MC_TRY(from, target(*from, at));
      }
      if (++spent_.merges > kMergesMax) return too_many(path);
      MC_TRY(one, merge(rest, *from, at));
    }
    each.push_back(one);
    all.push_back(later(*one, at));
  }
  if (std::string_view(some) == "oneOf") {
    for (const Json*& one : each)
      for (int hops = 0; one->is_object() && one->contains("$ref") && hops < kHopsMax; ++hops) {
        MC_TRY(one, target(*one, path));
      }
    if (each.size() > kOneOfMax)
      return unsupported(path, some, strf(" with over %zu schemas", kOneOfMax));
    for (size_t i = 0; i < each.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (!apart(*each[i], *each[j]))
          return unsupported(path, some,
                             strf(" where a value may fit two schemas, as %zu and %zu here: use "
                                  "anyOf, types that differ, or a required member whose const "
                                  "differs",
                                  j, i));
  }
  return rules_.either(all);
}

Result<Rules::Rule> read_json_schema(Rules& rules, const Json& schema, SchemaWork& spent) {
  return SchemaReader(rules, schema, spent).run();
}

Rules::Rule any_json_object(Rules& rules) {
  JsonText text(rules);
  const Rules::Rule root = rules.declare("an object");
  rules.define(root, text.any_object());
  return root;
}

}  // namespace mc::model::grammar
