// What an answer must look like: response_format as OpenAI has it, structured_outputs and guided_*
// as vLLM has them; and calls of tools that have to be made.
#include <optional>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/units.h"
#include "model/grammar/matcher.h"
#include "serve/request/openai_members.h"

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

// How a model's format writes calls: around them all, around one, between its name and its
// arguments, and between two.
struct CallFrame {
  const char *open = "", *begin = "", *middle = "", *end = "", *between = "", *close = "";
};
CallFrame frame_of(model::ToolCallFormat format) {
  using enum model::ToolCallFormat;
  switch (format) {
    case kHermes:
      return {"", "<tool_call>\n{\"name\": ", ", \"arguments\": ", "}\n</tool_call>", "\n", ""};
    case kLlama3: return {"", "{\"name\": ", ", \"parameters\": ", "}", "; ", ""};
    case kMistral: return {"[TOOL_CALLS] [", "{\"name\": ", ", \"arguments\": ", "}", ", ", "]"};
    case kQwen3Coder:
    case kGlm45:
    case kNone: break;
  }
  return {};
}

// A text as GBNF writes it.
std::string gbnf_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += strf("\\x%02x", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + '"';
}

// The same, but for marks of calls that the vocabulary has as tokens that are no text: these tokens
// and not their letters, as the model was taught.
std::string gbnf_marked(std::string_view text, const ApiLimits& limits) {
  const model::Tokenizer& tokenizer = *limits.tokenizer;
  for (size_t at = 0; at < text.size(); ++at)
    for (const std::string_view mark : model::tool_call_marks(limits.calls)) {
      if (!text.substr(at).starts_with(mark)) continue;
      const auto token = tokenizer.find(mark);
      if (!token || !tokenizer.special(*token) || !tokenizer.bytes(*token).empty()) continue;
      return gbnf_text(text.substr(0, at)) + strf(" <[%d]> ", *token) +
             gbnf_marked(text.substr(at + mark.size()), limits);
    }
  return gbnf_text(text);
}

// What a tool's arguments must look like: an object by its schema.
tl::expected<std::string, ApiError> arguments_schema(const std::string& name, const Json& tool) {
  const Json* const given = member(tool["function"], "parameters");
  Json schema = given != nullptr ? *given
                                 : Json{{"type", "object"},
                                        {"properties", Json::object()},
                                        {"additionalProperties", false}};
  if (!schema.contains("type")) schema["type"] = "object";
  const std::string tool_named = "the tool '" + escape(name) + "'";
  if (schema["type"] != "object")
    return bad("tools", "'parameters' of " + tool_named + " are not of type object");
  std::string text = dump_json(schema);
  if (const auto made = model::grammar::compile(Form::kJsonSchema, text); !made)
    return bad("tools", "'parameters' of " + tool_named + ": " + made.error().what);
  return text;
}

// The grammar of calls of these tools; `answer`: a schema that an answer fits that calls none; "":
// there has to be a call.
tl::expected<std::string, ApiError> calls_grammar(const Json& tools, const ApiLimits& limits,
                                                  const ToolUse& use, const std::string& answer) {
  const CallFrame f = frame_of(limits.calls);
  std::string names, schemas;
  size_t n = 0;
  for (const Json& tool : tools) {
    const std::string name = tool["function"]["name"];
    if (!use.names.contains(name)) continue;
    const auto schema = arguments_schema(name, tool);
    if (!schema) return tl::unexpected(schema.error());
    const std::string rule = "arguments" + std::to_string(n++);
    if (!names.empty()) names += " | ";
    names += gbnf_text(dump_json(name) + f.middle) + ' ' + rule;
    schemas += rule + " ::= %json " + *schema + '\n';
  }
  std::string out = "root ::= calls" + std::string(answer.empty() ? "" : " | answer") + '\n';
  if (!answer.empty()) out += "answer ::= %json " + answer + '\n';
  const auto text = [&](const char* part) { return gbnf_marked(part, limits); };
  out += "calls ::= " + text(f.open) + " call ";
  if (use.parallel) out += '(' + text(f.between) + " call)* ";
  return out + text(f.close) + "\ncall ::= " + text(f.begin) + " (" + names + ") " + text(f.end) +
         '\n' + schemas;
}

// A call where `tool_choice` wants one; beside a form that is JSON, a call or that.
Parsed add_calls(const Json& body, const ApiLimits& limits, const ToolUse& use,
                 std::optional<AskedForm>& asked) {
  const bool required = tool_choice(body).kind == ToolChoice::Kind::kRequired;
  if (use.names.empty()) return {};
  if (required && asked)
    return bad("tool_choice",
               strf("'tool_choice' asks for a call, and '%s' for an answer", asked->name.c_str()));
  std::string answer;
  if (asked && asked->form == Form::kJsonObject) answer = R"({"type":"object"})";
  if (asked && asked->form == Form::kJsonSchema) answer = asked->text;
  if (!required && answer.empty()) return {};
  if (model::calls_in_xml(limits.calls)) {
    const std::string what =
        required ? "a 'tool_choice' that asks for a call" : "'" + asked->name + "' beside 'tools'";
    return bad(required ? "tool_choice" : asked->param.c_str(),
               strf("%s is not supported: there is no token mask for calls as this model writes "
                    "them (%s)",
                    what.c_str(), model::name(limits.calls)));
  }
  auto grammar = calls_grammar(*member(body, "tools"), limits, use, answer);
  if (!grammar) return tl::unexpected(grammar.error());
  if (required) asked = AskedForm{"tool_choice", "tool_choice", Form::kNone, {}};
  asked->form = Form::kGbnf;
  asked->text = std::move(*grammar);
  return {};
}

}  // namespace

Parsed read_constraint(const Json& body, const ApiLimits& limits, CompletionRequest& r) {
  std::optional<AskedForm> asked;
  if (const Json* j = member(body, "response_format")) MC_API_TRY(read_response_format(*j, asked));
  if (const Json* j = member(body, "structured_outputs"))
    MC_API_TRY(read_structured_outputs(*j, asked));
  for (const char* kind : {"json", "regex", "choice", "grammar", "json_object"}) {
    const std::string name = std::string("guided_") + kind;
    if (const Json* j = member(body, name.c_str()))
      MC_API_TRY(read_one(name, name, kind, *j, asked));
  }
  MC_API_TRY(add_calls(body, limits, r.tools, asked));
  if (!asked) return {};
  if (r.ignore_eos)
    return bad("ignore_eos", strf("'ignore_eos' is not supported with '%s': the answer ends where "
                                  "its form does",
                                  asked->name.c_str()));
  // Here and again at the worker, which believes nobody.
  const auto compiled = model::grammar::compile(asked->form, asked->text);
  if (!compiled)
    return bad(asked->param.c_str(),
               strf("'%s': %s", asked->name.c_str(), compiled.error().what.c_str()));
  r.empty_form = model::grammar::Matcher(*compiled).over();
  r.constraint = {static_cast<uint32_t>(asked->form), std::move(asked->text)};
  return {};
}

}  // namespace mc::serve
