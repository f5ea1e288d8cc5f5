// Anthropic's messages as a chat.
#include "base/json.h"
#include "base/units.h"
#include "serve/translate/chat_request.h"
#include "serve/translate/chat_request_impl.h"
#include "serve/translate/engine_chat.h"

namespace mc::serve {
namespace {

using Done = tl::expected<void, ApiError>;

// A result of a tool is a message of its own.
Done add_tool_result(const Json& block, Json& messages) {
  const std::string id = text_member(block, "tool_use_id");
  if (id.empty()) return not_taken("messages", "a tool_result without a 'tool_use_id'");
  Json content = "";
  if (const Json* const given = member(block, "content")) {
    auto parts = text_parts(*given, "messages", {"text"});
    if (!parts) return tl::unexpected(parts.error());
    content = std::move(*parts);
  }
  messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(content)}});
  return {};
}

Done add_tool_use(const Json& block, Json& calls) {
  const Json* const input = member(block, "input");
  if (text_member(block, "name").empty() || (input != nullptr && !input->is_object()))
    return not_taken("messages",
                     "a tool_use without a 'name', or with an 'input' that is no object");
  calls.push_back({{"id", text_member(block, "id")},
                   {"type", "function"},
                   {"function",
                    {{"name", text_member(block, "name")},
                     {"arguments", dump_json(input == nullptr ? Json::object() : *input)}}}});
  return {};
}

Done add_blocks(const std::string& role, const Json& blocks, Json& messages) {
  Json parts = Json::array(), calls = Json::array();
  for (const Json& block : blocks) {
    const std::string type = text_member(block, "type");
    const bool user = role == "user";
    Done done;
    if (user && type == "tool_result") {
      done = add_tool_result(block, messages);
    } else if (!user && type == "tool_use") {
      done = add_tool_use(block, calls);
    } else if (!user && (type == "thinking" || type == "redacted_thinking")) {
      continue;
    } else {
      auto text = text_parts(Json::array({block}), "messages", {"text"});
      if (!text) return tl::unexpected(text.error());
      parts.push_back(std::move((*text)[0]));
    }
    if (!done) return done;
  }
  if (parts.empty() && calls.empty()) return {};
  Json message = {{"role", role}, {"content", parts.empty() ? Json() : std::move(parts)}};
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  messages.push_back(std::move(message));
  return {};
}

Done add_messages(const Json& body, Json& messages) {
  const Json* const all = member(body, "messages");
  if (all == nullptr || !all->is_array() || all->empty())
    return not_taken("messages", "'messages' is not a non-empty array of messages");
  for (const Json& message : *all) {
    const std::string role = text_member(message, "role");
    const Json* const content = member(message, "content");
    if ((role != "user" && role != "assistant") || content == nullptr)
      return not_taken("messages", "want messages with a 'content', of role user or assistant");
    if (content->is_string()) {
      messages.push_back({{"role", role}, {"content", *content}});
      continue;
    }
    if (!content->is_array()) return not_taken("messages", "a 'content' is no text and no array");
    if (const Done done = add_blocks(role, *content, messages); !done) return done;
  }
  if (text_member(all->back(), "role") == "assistant")
    return not_taken("messages",
                     "the last message is the assistant's: own workers do not go on with it");
  return {};
}

Done add_tools(const Json& body, Json& chat) {
  if (const Json* const tools = member(body, "tools")) {
    if (!tools->is_array()) return not_taken("tools", "'tools' is no array");
    chat["tools"] = Json::array();
    for (const Json& tool : *tools) {
      const std::string type = text_member(tool, "type");
      if (!type.empty() && type != "custom")
        return not_taken("tools", "tools of type '" + escape(type) + "' are not supported");
      Json function = {{"name", text_member(tool, "name")}};
      copy_members(tool, {"description"}, function);
      if (const Json* const schema = member(tool, "input_schema")) function["parameters"] = *schema;
      chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  const Json* const choice = member(body, "tool_choice");
  if (choice == nullptr) return {};
  const std::string type = text_member(*choice, "type");
  if (type == "tool" && text_member(*choice, "name").empty())
    return not_taken("tool_choice", "a 'tool_choice' of type tool without a 'name'");
  if (type == "any")
    chat["tool_choice"] = "required";
  else if (type == "tool")
    chat["tool_choice"] = {{"type", "function"},
                           {"function", {{"name", text_member(*choice, "name")}}}};
  else
    chat["tool_choice"] = type;
  const Json* const one = member(*choice, "disable_parallel_tool_use");
  if (one != nullptr && *one == Json(true)) chat["parallel_tool_calls"] = false;
  return {};
}

}  // namespace

tl::expected<Json, ApiError> chat_of_messages(const Json& body) {
  const Json* const thinking = member(body, "thinking");
  if (thinking != nullptr && text_member(*thinking, "type") != "disabled")
    return not_taken("thinking", "'thinking' other than disabled is not supported by own workers");
  if (member(body, "max_tokens") == nullptr)
    return not_taken("max_tokens", "'max_tokens' is missing");
  Json chat = Json::object(), messages = Json::array();
  copy_members(body, {"model", "max_tokens", "stream", "temperature", "top_p", "top_k"}, chat);
  copy_extensions(body, chat);
  if (const Json* const stops = member(body, "stop_sequences")) chat["stop"] = *stops;
  if (const Json* const system = member(body, "system")) {
    auto parts = text_parts(*system, "system", {"text"});
    if (!parts) return tl::unexpected(parts.error());
    if (parts->is_array())
      std::erase_if(parts->get_ref<Json::array_t&>(), [](const Json& part) {
        return is_billing_header(part["text"].get_ref<const std::string&>());
      });
    if (!parts->is_array() || !parts->empty())
      messages.push_back({{"role", "system"}, {"content", std::move(*parts)}});
  }
  if (const Done done = add_messages(body, messages); !done) return tl::unexpected(done.error());
  if (const Done done = add_tools(body, chat); !done) return tl::unexpected(done.error());
  chat["messages"] = std::move(messages);
  return chat;
}

ApiError error_of_messages(ApiError error) {
  if (error.param == "stop") error.param = "stop_sequences";
  return error;
}

}  // namespace mc::serve
