// Gives the messages of a chat to the model's template.
//
// Content parts of text go to a template that reads parts as they are, to others joined by
// newlines. Arguments of tool calls are parsed, as templates write them themselves. What a chat
// says of reasoning is two variables, as in vLLM: reasoning_effort, and enable_thinking.
#include <algorithm>
#include <array>

#include "base/json.h"
#include "base/units.h"
#include "serve/request/openai_members.h"

namespace mc::serve {
namespace {

constexpr size_t kMessagesMax = 4096, kToolsMax = 512, kToolNameMax = 256, kEffortMax = 64;
constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};

// A message's text: a string, or parts that are text.
Parsed read_content(const Json& message, bool optional, std::vector<std::string>& parts) {
  const Json* const content = member(message, "content");
  if (content == nullptr && optional) return {};
  if (content != nullptr && content->is_string()) {
    parts.push_back(content->get<std::string>());
    return {};
  }
  if (content == nullptr || !content->is_array())
    return bad("messages", "a message without a 'content' that is text");
  for (const Json& part : *content) {
    const Json* const text = member(part, "text");
    if (text == nullptr || !text->is_string())
      return bad("messages", "a content part that is not text");
    parts.push_back(text->get<std::string>());
  }
  return {};
}

Parsed read_calls(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return {};
  if (!calls->is_array()) return wrong_type("messages", *calls, "an array of 'tool_calls'");
  for (Json& call : *calls) {
    const Json* const function = member(call, "function");
    if (function == nullptr || !function->is_object())
      return bad("messages", "a tool call without a 'function' that is an object");
    Json& made = call["function"];
    const auto arguments = made.find("arguments");
    if (arguments == made.end() || !arguments->is_string()) continue;
    const std::string text = arguments->get<std::string>();
    auto parsed = parse_json(text.empty() ? "{}" : text);
    if (!parsed || !parsed->is_object())
      return bad("messages", "'arguments' of a tool call are no JSON object");
    made["arguments"] = std::move(*parsed);
  }
  return {};
}

Parsed read_message(const Json& given, bool parts_wanted, Json& out) {
  std::vector<std::string> parts;
  const bool calls = member(given, "tool_calls") != nullptr;
  MC_API_TRY(read_content(given, calls, parts));
  out = given;
  MC_API_TRY(read_calls(out));
  const Json* const content = member(given, "content");
  if (content == nullptr) {
    out["content"] = nullptr;
  } else if (content->is_array() && parts_wanted) {
    Json list = Json::array();
    for (const std::string& part : parts) list.push_back({{"type", "text"}, {"text", part}});
    out["content"] = std::move(list);
  } else if (content->is_array()) {
    std::string text;
    for (size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? "\n" : "") + parts[i];
    out["content"] = std::move(text);
  }
  return {};
}

// A tool's name.
tl::expected<std::string, ApiError> read_tool(const Json& tool) {
  const Json* const type = member(tool, "type");
  if (type == nullptr || *type != "function")
    return bad("tools", "a tool whose 'type' is not 'function'");
  const Json* const function = member(tool, "function");
  const Json* const name = function == nullptr ? nullptr : member(*function, "name");
  if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty() ||
      name->get_ref<const std::string&>().size() > kToolNameMax)
    return bad("tools", strf("a tool without a 'function' that has a 'name' of 1 to %zu bytes",
                             kToolNameMax));
  const Json* const parameters = member(*function, "parameters");
  if (parameters != nullptr && !parameters->is_object())
    return bad("tools", "'parameters' of a tool are no object");
  return name->get<std::string>();
}

// Can the model be told of tools, and can its calls be found?
Parsed check_tool_template(const ApiLimits& limits) {
  const auto& chat = limits.chat;
  const auto& program = chat.tools ? chat.tools : chat.program;
  if (!program || !program->reads("tools"))
    return bad("tools", "'tools' are not supported: this model's chat template does not read them");
  if (limits.calls == model::ToolCallFormat::kNone)
    return bad("tools",
               "'tools' are not supported: how this model writes its calls is not known "
               "(--tool-call-parser)");
  return {};
}

Parsed check_effort(const Json& body) {
  std::string effort(kEfforts[0]);
  MC_API_TRY(Members(body).read("reasoning_effort", effort, kEffortMax));
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) != kEfforts.end()) return {};
  return bad("reasoning_effort",
             strf("'reasoning_effort' is '%s', want none, minimal, low, medium, "
                  "high, xhigh or max",
                  escape(effort).c_str()));
}

// What a template reads besides the messages.
Parsed read_variables(const Json& body, Json& variables) {
  const Members m(body);
  if (const Json* more = m.find("chat_template_kwargs")) {
    if (!more->is_object()) return wrong_type("chat_template_kwargs", *more, "an object");
    variables = *more;
  }
  if (const Json* const effort = m.find("reasoning_effort")) {
    variables["reasoning_effort"] = *effort;
    if (!variables.contains("enable_thinking")) variables["enable_thinking"] = *effort != "none";
  }
  bool prompts = true;
  MC_API_TRY(m.read("add_generation_prompt", prompts));
  variables["add_generation_prompt"] = prompts;
  for (const char* const name : {"tools", "documents"}) {
    const Json* const list = m.find(name);
    if (list != nullptr && !list->is_array()) return wrong_type(name, *list, "an array");
    for (const Json& each : list == nullptr ? Json::array() : *list)
      if (!each.is_object()) return wrong_type(name, each, "objects");
    variables[name] = list == nullptr || list->empty() ? Json() : *list;
  }
  const Json* const choice = m.find("tool_choice");
  if (choice != nullptr && *choice == "none") variables["tools"] = nullptr;
  return {};
}

tl::expected<model::ChatPrompt, ApiError> by_template(const Json& messages, const Json& body,
                                                      const ApiLimits& limits) {
  const bool parts = limits.chat.program->reads_content_parts();
  Json variables = Json::object(), all = Json::array();
  MC_API_TRY(read_variables(body, variables));
  for (const Json& message : messages) {
    Json made;
    MC_API_TRY(read_message(message, parts, made));
    all.push_back(std::move(made));
  }
  variables["messages"] = std::move(all);
  RenderingBound* const bound = limits.rendering;
  auto prompt = model::chat_prompt(limits.chat, *limits.tokenizer, std::move(variables),
                                   limits.now ? limits.now() : std::tm{},
                                   bound != nullptr ? bound->most : model::TemplateLimits());
  if (prompt) return std::move(*prompt);
  if (bound != nullptr && prompt.error().code == Code::kNoSpace) bound->exceeded = true;
  return bad("messages", prompt.error().what);
}

}  // namespace

ToolChoice tool_choice(const Json& body) {
  const Json* const choice = member(body, "tool_choice");
  if (choice == nullptr || *choice == "auto") return {};
  if (*choice == "none") return {ToolChoice::Kind::kNone, {}};
  if (*choice == "required") return {ToolChoice::Kind::kRequired, {}};
  const Json* const type = member(*choice, "type");
  const Json* const function = member(*choice, "function");
  const Json* const name = function == nullptr ? nullptr : member(*function, "name");
  if (type == nullptr || *type != "function" || name == nullptr || !name->is_string())
    return {ToolChoice::Kind::kUnknown, {}};
  return {ToolChoice::Kind::kRequired, name->get<std::string>()};
}

Parsed read_tools(const Json& body, const ApiLimits& limits, ToolUse& use) {
  const Members m(body);
  const ToolChoice choice = tool_choice(body);
  if (choice.kind == ToolChoice::Kind::kUnknown)
    return bad("tool_choice",
               "this 'tool_choice' is not supported, want none, auto, required or "
               "{\"type\": \"function\", \"function\": {\"name\": NAME}}");
  MC_API_TRY(m.read("parallel_tool_calls", use.parallel));
  const Json* const tools = m.find("tools");
  const bool required = choice.kind == ToolChoice::Kind::kRequired;
  if (required && (tools == nullptr || tools->empty()))
    return bad("tool_choice", "'tool_choice' asks for a call, and there are no 'tools'");
  if (tools == nullptr) return {};
  if (!tools->is_array() || tools->size() > kToolsMax)
    return bad("tools", strf("'tools' is not an array of %zu tools at most", kToolsMax));
  std::set<std::string, std::less<>> names;
  for (const Json& tool : *tools) {
    auto name = read_tool(tool);
    if (!name) return tl::unexpected(name.error());
    const Json* const parameters = member(tool["function"], "parameters");
    if (parameters != nullptr && model::calls_in_xml(limits.calls))
      use.types[*name] = parameter_types(*parameters);
    names.insert(std::move(*name));
  }
  if (names.empty() || choice.kind == ToolChoice::Kind::kNone) return {};
  MC_API_TRY(check_tool_template(limits));
  if (!choice.name.empty() && !names.contains(choice.name))
    return bad("tool_choice", strf("'tool_choice' names '%s', which is none of the tools",
                                   escape(choice.name).c_str()));
  use.names = choice.name.empty() ? std::move(names) : decltype(names){choice.name};
  return {};
}

bool reads_effort(const model::ChatFormat& chat, bool tools) {
  const auto& program = tools && chat.tools ? chat.tools : chat.program;
  return program && (program->reads("reasoning_effort") || program->reads("enable_thinking"));
}

tl::expected<model::ChatPrompt, ApiError> read_messages(const Json& j, const Json& body,
                                                        const ApiLimits& limits) {
  MC_API_TRY(check_effort(body));
  if (!j.is_array() || j.empty() || j.size() > kMessagesMax)
    return bad("messages", "'messages' is not a non-empty array of messages");
  for (const Json& message : j) {
    if (!message.is_object()) return wrong_type("messages", message, "objects");
    const Json* const role = member(message, "role");
    if (role == nullptr || !role->is_string())
      return bad("messages", "a message without a 'role' that is a string");
  }
  if (limits.chat.program) return by_template(j, body, limits);
  std::vector<model::ChatMessage> messages;
  for (const Json& message : j) {
    std::vector<std::string> parts;
    MC_API_TRY(read_content(message, false, parts));
    std::string text;
    for (const std::string& part : parts) text += part;
    messages.push_back({message["role"].get<std::string>(), std::move(text)});
  }
  auto prompt = model::chat_prompt(limits.chat.kind, *limits.tokenizer, messages);
  if (!prompt) return bad("messages", prompt.error().what);
  return std::move(*prompt);
}

}  // namespace mc::serve
