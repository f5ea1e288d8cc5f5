// What an answer must look like: response_format as OpenAI has it, structured_outputs and guided_*
// as vLLM has them.
#include <optional>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/units.h"
#include "serve/frontend/openai_members.h"

namespace mc::serve {
namespace {

using model::grammar::Form;

struct AskedForm {
  std::string param, name;  // the member of the request; of this, or in it
  Form form = Form::kNone;
  std::string text;
};

// One kind of constraint, as its member has it.
Parsed read_one(const std::string& param, const std::string& name, const std::string& kind,
                const Json& j, std::optional<AskedForm>& asked) {
  AskedForm a{param, name, Form::kNone, {}};
  if (kind == "json_object") {
    if (!j.is_boolean()) return wrong_type(param.c_str(), j, "a boolean");
    if (j == false) return {};
    a.form = Form::kJsonObject;
  } else if (kind == "json") {
    a.form = Form::kJsonSchema;
    a.text = j.is_string() ? j.get<std::string>() : dump_json(j);
  } else if (kind == "choice") {
    a.form = Form::kChoice;
    a.text = dump_json(j);
  } else {
    if (!j.is_string()) return wrong_type(param.c_str(), j, "a string");
    a.form = kind == "regex" ? Form::kRegex : Form::kGbnf;
    a.text = j.get<std::string>();
  }
  if (asked)
    return bad(param.c_str(),
               strf("'%s' beside '%s': an answer has one form", name.c_str(), asked->name.c_str()));
  asked = std::move(a);
  return {};
}

Parsed read_response_format(const Json& j, std::optional<AskedForm>& asked) {
  const char* const param = "response_format";
  if (!j.is_object()) return wrong_type(param, j, "an object");
  const Json* const type = member(j, "type");
  if (type == nullptr || !type->is_string())
    return bad(param, "'response_format' has no 'type': want text, json_object or json_schema");
  if (*type == "text") return {};
  if (*type == "json_object") return read_one(param, param, "json_object", true, asked);
  if (*type != "json_schema")
    return bad(param, strf("'response_format' of type '%s' is not supported, only text, "
                           "json_object and json_schema",
                           escape(type->get_ref<const std::string&>()).c_str()));
  const Json* const outer = member(j, "json_schema");
  const Json* const schema = outer == nullptr ? nullptr : member(*outer, "schema");
  if (schema == nullptr)
    return bad(param, "'response_format' has no 'json_schema' with a 'schema'");
  return read_one(param, param, "json", *schema, asked);
}

Parsed read_structured_outputs(const Json& j, std::optional<AskedForm>& asked) {
  const char* const param = "structured_outputs";
  if (!j.is_object()) return wrong_type(param, j, "an object");
  for (const auto& [name, value] : j.items()) {
    if (value.is_null() || value == false) continue;
    const bool known = name == "json" || name == "regex" || name == "choice" || name == "grammar" ||
                       name == "json_object";
    const std::string what = std::string(param) + "." + name;
    if (!known) return bad(param, strf("'%s' is not supported", escape(what).c_str()));
    MC_API_TRY(read_one(param, what, name, value, asked));
  }
  return {};
}

}  // namespace

Parsed read_constraint(const Json& body, CompletionRequest& r) {
  std::optional<AskedForm> asked;
  if (const Json* j = member(body, "response_format")) MC_API_TRY(read_response_format(*j, asked));
  if (const Json* j = member(body, "structured_outputs"))
    MC_API_TRY(read_structured_outputs(*j, asked));
  for (const char* kind : {"json", "regex", "choice", "grammar", "json_object"}) {
    const std::string name = std::string("guided_") + kind;
    if (const Json* j = member(body, name.c_str()))
      MC_API_TRY(read_one(name, name, kind, *j, asked));
  }
  if (!asked) return {};
  if (r.ignore_eos)
    return bad("ignore_eos", strf("'ignore_eos' is not supported with '%s': the answer ends where "
                                  "its form does",
                                  asked->name.c_str()));
  // Here and again at the worker, which believes nobody.
  if (const auto compiled = model::grammar::compile(asked->form, asked->text); !compiled)
    return bad(asked->param.c_str(),
               strf("'%s': %s", asked->name.c_str(), compiled.error().what.c_str()));
  r.constraint = {static_cast<uint32_t>(asked->form), std::move(asked->text)};
  return {};
}

}  // namespace mc::serve
