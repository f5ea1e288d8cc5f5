#include "model/grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "model/grammar/json_text.h"
#include "model/grammar/name_patterns.h"
#include "model/grammar/schema_merge.h"
#include "model/grammar/schema_not.h"

namespace mc::model::grammar {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr size_t kValuesMax = 1 << 16;  // schemas that are read, copies too
constexpr int64_t kCountMax = 100'000;  // of characters and elements

// Which keywords belong to which type.
const std::map<std::string, std::vector<std::string>>& keywords_of() {
  static const std::map<std::string, std::vector<std::string>> all = {
      {"object", {"properties", "required", "additionalProperties", "patternProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
      {"string", {"minLength", "maxLength", "pattern", "format"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
  return all;
}

class SchemaReader {
 public:
  SchemaReader(Rules& rules, const Json& root, SchemaWork& spent)
      : rules_(rules), root_(root), text_(rules), spent_(spent) {}

  Result<Rules::Rule> run() {
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

 private:
  struct Work {
    Rules::Rule rule;
    const Json* schema;
    std::string path;
  };
  using Node = Rules::Node;

  static Failure wrong(const std::string& path, const std::string& keyword, const char* want) {
    return fail(Code::kInvalid, "%s/%s is not %s", path.c_str(), escape(keyword).c_str(), want);
  }
  static Failure unsupported(const std::string& path, const std::string& keyword,
                             const std::string& but = "") {
    return fail(Code::kUnsupported, "%s/%s is not supported%s", path.c_str(),
                escape(keyword).c_str(), but.c_str());
  }

  // A rule of its own, so that reading does not nest.
  Node later(const Json& schema, const std::string& path) {
    const Rules::Rule rule = rules_.declare(path);
    work_.push_back({rule, &schema, path});
    return rules_.call(rule);
  }

  Result<Node> read(const Json& schema, const std::string& path) {
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

  Result<> check_keywords(const Json& schema, const std::string& path) {
    for (const auto& [name, value] : schema.items()) {
      if (is_annotation(name)) continue;
      if (name == "minProperties" && value == 0) continue;
      if (!is_known(name)) return unsupported(path, name);
    }
    return {};
  }

  // What a local reference names.
  Result<const Json*> target(const Json& schema, const std::string& path) {
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
  static std::string unescaped(const std::string& part) {  // of a JSON pointer in a URI
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
  Result<Node> read_ref(const Json& schema, const std::string& path) {
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

  static Failure too_many(const std::string& path) {
    return fail(Code::kNoSpace, "%s: over %zu combinations of schemas", path.c_str(), kMergesMax);
  }
  Result<const Json*> merge(const Json& a, const Json& b, const std::string& path) {
    MC_TRY(Json made, merge_schemas(a, b, path));
    return keep(std::move(made), path);
  }
  Result<const Json*> keep(Json made, const std::string& path) {
    spent_.copied += dump_json(made).size();
    if (spent_.copied > kCopiedMax) return too_many(path);
    kept_.push_back(std::move(made));
    return &kept_.back();
  }

  // A schema with those of allOf, and with what they refer to.
  Result<Node> read_all_of(const Json& schema, const std::string& path) {
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

  Result<Node> read_some_of(const Json& schema, const char* some, const std::string& path) {
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

  Result<Node> read_values(const Json& schema, const std::string& keyword,
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

  Result<std::vector<std::string>> types_of(const Json& schema, const std::string& path) {
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

  Result<Node> read_type(const std::string& type, const Json& schema, const std::string& path) {
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

  Result<Bounds> read_bounds(const Json& schema, const std::string& path) {
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

  Result<uint32_t> count(const Json& schema, const char* name, uint32_t fallback,
                         const std::string& path) {
    if (!schema.contains(name)) return fallback;
    const Json& j = schema[name];
    if (!j.is_number_integer() || j < 0) return wrong(path, name, "a whole number of 0 or more");
    if (j > kCountMax)
      return unsupported(path, name, strf(" over %lld", static_cast<long long>(kCountMax)));
    return j.get<uint32_t>();
  }

  Result<Node> read_string(const Json& schema, const std::string& path) {
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

  Result<Node> read_array(const Json& schema, const std::string& path) {
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
  // Values of an enum, in its order.
  Result<Node> read_unique(const Json& schema, uint32_t least, uint32_t most,
                           const std::string& path) {
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
  Node elements(const std::vector<Node>& first, Node rest, uint32_t least, uint32_t most) {
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
      tail =
          rules_.named("elements", rules_.sequence({i == 0 ? first[i] : behind(first[i]), after}));
    }
    if (most == 0) return text_.array_of(rules_.empty());
    return text_.array_of(least == 0 ? rules_.maybe(tail) : tail);
  }

  // `value`: what else is said of that member. `matched`: some pattern does.
  Result<const Json*> with_patterns(const std::string& name, const Json* value,
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

  Result<Node> read_object(const Json& schema, const std::string& path) {
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
    if (!patterns_.empty()) return members_by_pattern(members, path);
    if (!others) return members_of(members, rules_.never());
    return members_of(members, rules_.sequence({text_.other_key(names), other_value}));
  }

  struct Member {
    Node node;
    bool required;
  };
  // Other members only where there are no others yet, and one pattern.
  Result<Node> members_by_pattern(const std::vector<Member>& members, const std::string& path) {
    if (!members.empty()) return members_of(members, rules_.never());
    if (patterns_.size() > 1)
      return unsupported(path, "patternProperties", " of several patterns without properties");
    MC_TRY(const Node key, text_.key_like(patterns_[0].text));
    const Node value = later(*patterns_[0].schema, path + "/patternProperties");
    return members_of({}, rules_.sequence({key, value}));
  }
  // The members in their order, with commas, then any number of `other`.
  Node members_of(const std::vector<Member>& members, Node other) {
    const auto behind = [&](Node one) { return rules_.sequence({text_.comma(), one}); };
    // What may follow once there is a member, and what may begin: of the members from i on.
    Node rest = rules_.named("other members", rules_.repeat(behind(other), 0));
    Node all = rules_.maybe(rules_.sequence({other, rest}));
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

  static constexpr int kHopsMax = 32;
  static constexpr size_t kMergesMax = 4096, kOneOfMax = 64, kCopiedMax = 16 << 20;
  static constexpr size_t kUniqueMax = 32;
  const Json kAnything = true;
  Rules& rules_;
  const Json& root_;
  JsonText text_;
  std::map<std::string, Rules::Rule> rules_of_;  // by what refers to them
  std::deque<Work> work_;
  std::deque<Json> kept_;              // schemas that were put together
  std::vector<NamePattern> patterns_;  // of the object that is read
  SchemaWork& spent_;
};

}  // namespace

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
