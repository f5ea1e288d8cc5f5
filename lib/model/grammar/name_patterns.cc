#include "model/grammar/name_patterns.h"

#include <utility>

#include "base/json.h"
#include "model/grammar/json_text.h"
#include "model/grammar/matcher.h"

namespace mc::model::grammar {

constexpr size_t kPatternsMax = 16;

Result<bool> NamePattern::takes(const std::string& name) const {
  Matcher matcher(names);
  MC_TRY(const bool took, matcher.take(dump_json(Json(name))));
  return took && matcher.complete();
}

Result<std::vector<NamePattern>> read_name_patterns(const Json& schema, const std::string& path) {
  std::vector<NamePattern> patterns;
  const Json* const all = member(schema, "patternProperties");
  if (all == nullptr) return patterns;
  const std::string at = path + "/patternProperties";
  if (!all->is_object()) return fail(Code::kInvalid, "%s is not an object of schemas", at.c_str());
  if (all->size() > kPatternsMax)
    return fail(Code::kUnsupported, "%s is not supported with over %zu patterns", at.c_str(),
                kPatternsMax);
  for (const auto& [pattern, value] : all->items()) {
    Rules rules;
    JsonText text(rules);
    const auto name = text.pattern(pattern, true);
    if (!name) return fail(name.error().code, "%s: %s", at.c_str(), name.error().what.c_str());
    const Rules::Rule root = rules.declare("a name");
    rules.define(root, *name);
    MC_TRY(Automaton automaton, Automaton::build(rules, root));
    patterns.push_back({pattern, &value, std::make_shared<const Automaton>(std::move(automaton))});
  }
  return patterns;
}

}  // namespace mc::model::grammar
