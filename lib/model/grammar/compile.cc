#include "model/grammar/compile.h"

#include <utility>
#include <vector>

#include "base/json.h"
#include "model/grammar/gbnf.h"
#include "model/grammar/json_schema.h"
#include "model/grammar/regex.h"

namespace mc::model::grammar {
namespace {

Result<Rules::Rule> read_choices(Rules& rules, const std::string& text) {
  MC_TRY(const Json list, parse_json(text));
  std::vector<std::string> choices;
  if (!list.is_array() || list.empty())
    return fail(Code::kInvalid, "the choices are no array of texts");
  for (const Json& one : list) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      return fail(Code::kInvalid, "a choice is no text, or an empty one");
    choices.push_back(one);
  }
  const Rules::Rule root = rules.declare("a choice");
  rules.define(root, rules.texts(std::move(choices)));
  return root;
}

Result<Rules::Rule> read_form(Rules& rules, Form form, const std::string& text) {
  switch (form) {
    case Form::kJsonObject: return any_json_object(rules);
    case Form::kChoice: return read_choices(rules, text);
    case Form::kGbnf: return read_gbnf(rules, text);
    case Form::kJsonSchema: {
      MC_TRY(const Json schema, parse_json(text));
      SchemaWork spent;
      return read_json_schema(rules, schema, spent);
    }
    case Form::kRegex: {
      MC_TRY(const Rules::Node node, read_regex(rules, text));
      const Rules::Rule root = rules.declare("the pattern");
      rules.define(root, node);
      return root;
    }
    case Form::kNone: break;
  }
  return fail(Code::kUnsupported, "form %u of a constraint is not known here",
              static_cast<unsigned>(form));
}

}  // namespace

Result<std::shared_ptr<const Automaton>> compile(Form form, const std::string& text) {
  if (text.size() > kTextMax)
    return fail(Code::kNoSpace, "it has %zu bytes, want %zu at most", text.size(), kTextMax);
  Rules rules;
  MC_TRY(const Rules::Rule root, read_form(rules, form, text));
  MC_TRY(Automaton automaton, Automaton::build(rules, root));
  return std::make_shared<const Automaton>(std::move(automaton));
}

}  // namespace mc::model::grammar
