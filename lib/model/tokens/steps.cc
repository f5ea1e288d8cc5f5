#include "model/tokens/steps.h"

#include "base/json.h"
#include "base/units.h"
#include "model/tokens/regex.h"

namespace mc::model {
namespace {

Result<> flatten(const Json& step, const char* part, const char* list,
                 std::vector<const Json*>& out) {
  const std::string type = text_of(step, "type");
  if (type.empty())
    return fail(Code::kInvalid, "%s %s has no 'type'", part,
                escape(dump_json(step).substr(0, 100)).c_str());
  if (type != "Sequence") {
    out.push_back(&step);
    if (out.size() > kStepsMax)
      return fail(Code::kInvalid, "%s: more than %zu steps", part, kStepsMax);
    return {};
  }
  const Json* inner = member(step, list);
  if (inner == nullptr || !inner->is_array())
    return fail(Code::kInvalid, "%s Sequence: want a list '%s'", part, list);
  for (const Json& one : *inner) MC_TRY_(flatten(one, part, list, out));
  return {};
}

}  // namespace

std::string text_of(const Json& object, const char* key) {
  const Json* j = member(object, key);
  return j != nullptr && j->is_string() ? j->get<std::string>() : "";
}

bool flag_of(const Json& object, const char* key, bool fallback) {
  const Json* j = member(object, key);
  return j != nullptr && j->is_boolean() ? j->get<bool>() : fallback;
}

Result<std::vector<const Json*>> steps_of(const Json* step, const char* part, const char* list) {
  std::vector<const Json*> out;
  if (step != nullptr) MC_TRY_(flatten(*step, part, list, out));
  return out;
}

Error about_step(const char* part, const Json& step, const Error& error) {
  return {error.code,
          strf("%s %s: %s", part, escape(text_of(step, "type")).c_str(), error.what.c_str())};
}

std::string quoted_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view(R"(\^$.|?*+()[]{}-&#~)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

Result<Regex> read_pattern(const Json& step) {
  const Json* pattern = member(step, "pattern");
  if (pattern == nullptr || !pattern->is_object())
    return fail(Code::kInvalid, "want a 'pattern' of a String or a Regex");
  if (const Json* text = member(*pattern, "String"); text != nullptr && text->is_string()) {
    if (text->get_ref<const std::string&>().empty())
      return fail(Code::kInvalid, "the pattern is empty");
    return Regex::compile(quoted_pattern(text->get_ref<const std::string&>()));
  }
  const Json* regex = member(*pattern, "Regex");
  if (regex == nullptr || !regex->is_string())
    return fail(Code::kInvalid, "want a 'pattern' of a String or a Regex");
  return Regex::compile(regex->get_ref<const std::string&>());
}

}  // namespace mc::model
