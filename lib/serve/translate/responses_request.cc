// OpenAI's responses as a chat.
#include "base/json.h"
#include "base/units.h"
#include "serve/translate/chat_request.h"
#include "serve/translate/chat_request_impl.h"

namespace mc::serve {
namespace {

using Taken = tl::expected<void, ApiError>;

Taken add_message(const Json& item, Json& messages) {
  std::string role = text_member(item, "role");
  if (role == "developer") role = "system";
  const Json* const content = member(item, "content");
  if ((role != "user" && role != "assistant" && role != "system") || content == nullptr)
    return not_taken(
        "input", "want messages with a 'content', of role user, assistant, system or developer");
  auto parts = text_parts(*content, "input", {"input_text", "output_text", "text"});
  if (!parts) return tl::unexpected(parts.error());
  messages.push_back({{"role", role}, {"content", std::move(*parts)}});
  return {};
}

// Calls that follow each other, or what the assistant said before, are one message.
Taken add_call(const Json& item, Json& messages) {
  const std::string name = text_member(item, "name");
  if (name.empty()) return not_taken("input", "a function_call without a 'name'");
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  messages.back()["tool_calls"].push_back(
      {{"id", text_member(item, "call_id")},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", text_member(item, "arguments")}}}});
  return {};
}

Taken add_output(const Json& item, Json& messages) {
  const Json* const output = member(item, "output");
  if (output == nullptr) return not_taken("input", "a function_call_output without an 'output'");
  auto parts = text_parts(*output, "input", {"input_text", "output_text", "text"});
  if (!parts) return tl::unexpected(parts.error());
  messages.push_back({{"role", "tool"},
                      {"tool_call_id", text_member(item, "call_id")},
                      {"content", std::move(*parts)}});
  return {};
}

Taken add_input(const Json& body, Json& messages) {
  const Json* const input = member(body, "input");
  if (input == nullptr) return not_taken("input", "'input' is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return {};
  }
  if (!input->is_array() || input->empty())
    return not_taken("input", "'input' is neither text nor an array of items");
  for (const Json& item : *input) {
    const std::string type = text_member(item, "type");
    Taken taken;
    if (type == "function_call")
      taken = add_call(item, messages);
    else if (type == "function_call_output")
      taken = add_output(item, messages);
    else if (type == "message" || (type.empty() && item.is_object()))
      taken = add_message(item, messages);
    else if (type != "reasoning")
      return not_taken("input",
                       "an item of type '" + escape(type) + "' is not supported by own workers");
    if (!taken) return taken;
  }
  return {};
}

Taken add_functions(const Json& body, Json& chat) {
  const Json* const tools = member(body, "tools");
  if (tools != nullptr && !tools->is_array()) return not_taken("tools", "'tools' is no array");
  if (tools != nullptr) chat["tools"] = Json::array();
  for (const Json& tool : tools == nullptr ? Json::array() : *tools) {
    const std::string type = text_member(tool, "type");
    if (type != "function")
      return not_taken("tools", "tools of type '" + escape(type) +
                                    "' are not supported by own workers: they have function");
    Json function = Json::object();
    copy_members(tool, {"name", "description", "parameters", "strict"}, function);
    chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (const Json* const choice = member(body, "tool_choice")) {
    chat["tool_choice"] = *choice;
    if (choice->is_object())
      chat["tool_choice"] = {{"type", text_member(*choice, "type")},
                             {"function", {{"name", text_member(*choice, "name")}}}};
  }
  return {};
}

// {"type": "json_schema", "name":, "schema":, "strict":} has its own object in a chat.
void add_format(const Json& body, Json& chat) {
  const Json* const text = member(body, "text");
  const Json* const format = text == nullptr ? nullptr : member(*text, "format");
  if (format == nullptr) return;
  chat["response_format"] = *format;
  if (text_member(*format, "type") != "json_schema") return;
  Json schema = Json::object();
  copy_members(*format, {"name", "description", "schema", "strict"}, schema);
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

// What stands inside of members.
Taken check_inner(const Json& body) {
  if (const Json* const include = member(body, "include")) {
    if (!include->is_array()) return not_taken("include", "'include' is no array");
    for (const Json& what : *include) {
      if (!what.is_string()) return not_taken("include", "'include' has what is no text");
      if (what == "message.output_text.logprobs")
        return not_taken("include", "logprobs are not supported in responses: chats have them");
    }
  }
  const Json* const text = member(body, "text");
  if (text != nullptr && !text->is_object()) return not_taken("text", "'text' is no object");
  const Json* const verbosity = text == nullptr ? nullptr : member(*text, "verbosity");
  if (verbosity != nullptr && *verbosity != "medium")
    return not_taken("text", "a 'verbosity' other than medium is not supported by own workers");
  return {};
}

}  // namespace

tl::expected<Json, ApiError> chat_of_responses(const Json& body) {
  if (const Taken taken = check_inner(body); !taken) return tl::unexpected(taken.error());
  Json chat = Json::object(), messages = Json::array();
  copy_members(
      body,
      {"model", "stream", "temperature", "top_p", "top_k", "parallel_tool_calls", "user", "stop"},
      chat);
  copy_extensions(body, chat);
  if (const Json* const most = member(body, "max_output_tokens")) chat["max_tokens"] = *most;
  if (const Json* const said = member(body, "instructions")) {
    if (!said->is_string()) return not_taken("instructions", "'instructions' is no string");
    messages.push_back({{"role", "system"}, {"content", *said}});
  }
  if (const Taken taken = add_input(body, messages); !taken) return tl::unexpected(taken.error());
  if (const Taken taken = add_functions(body, chat); !taken) return tl::unexpected(taken.error());
  add_format(body, chat);
  chat["messages"] = std::move(messages);
  return chat;
}

ApiError error_of_responses(ApiError error) {
  if (error.param == "messages") error.param = "input";
  if (error.param == "max_tokens") error.param = "max_output_tokens";
  if (error.param == "response_format") error.param = "text";
  return error;
}

}  // namespace mc::serve
