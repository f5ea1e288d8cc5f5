#include "serve/translate/engine_chat.h"

#include <string>
#include <utility>

#include "base/json.h"
#include "serve/translate/chat_request_impl.h"

namespace mc::serve {
namespace {

// The list of a member, an empty one where it is missing; null where it is no list.
const Json* list_member(const Json& body, const char* name) {
  static const Json kNone = Json::array();
  const Json* const list = member(body, name);
  if (list == nullptr) return &kNone;
  return list->is_array() ? list : nullptr;
}

Json text_part(std::string text) { return {{"type", "text"}, {"text", std::move(text)}}; }
Json image_part(std::string url) {
  return {{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}};
}
Json function_call(std::string id, std::string name, std::string arguments) {
  return {{"id", std::move(id)},
          {"type", "function"},
          {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}};
}

// ---- Anthropic's messages

std::string url_of(const Json& source) {
  if (text_member(source, "type") == "url") return text_member(source, "url");
  const std::string type = text_member(source, "media_type");
  return "data:" + (type.empty() ? "image/jpeg" : type) + ";base64," + text_member(source, "data");
}

// The texts of blocks, one after the other.
std::string joined(const Json& content, const char* between, bool system) {
  if (content.is_string()) return content.get<std::string>();
  std::string all;
  bool first = true;
  for (const Json& block : content) {
    const std::string text = text_member(block, "text");
    if (text_member(block, "type") != "text" || (system && is_billing_header(text))) continue;
    if (!std::exchange(first, false)) all += between;
    all += text;
  }
  return all;
}

// Pictures of a tool's result are a message of the user behind it.
void add_result(const Json& block, Json& messages) {
  static const Json kEmpty = "";
  const Json* const given = member(block, "content");
  const Json& content = given == nullptr ? kEmpty : *given;
  messages.push_back({{"role", "tool"},
                      {"tool_call_id", text_member(block, "tool_use_id")},
                      {"content", joined(content, "\n", false)}});
  Json images = Json::array();
  for (const Json& item : content)
    if (const Json* const source = member(item, "source"))
      if (text_member(item, "type") == "image") images.push_back(image_part(url_of(*source)));
  if (!images.empty()) messages.push_back({{"role", "user"}, {"content", std::move(images)}});
}

struct TurnParts {  // of one message
  Json content = Json::array(), calls = Json::array();
  std::string reasoning;
  bool thought = false;
};

// Returns: false for a block that is not known here.
bool add_block(const Json& block, const std::string& role, TurnParts& parts, Json& messages) {
  const std::string type = text_member(block, "type");
  if (type == "text") {
    if (std::string text = text_member(block, "text"); !text.empty())
      parts.content.push_back(text_part(std::move(text)));
  } else if (type == "image") {
    const Json* const source = member(block, "source");
    if (source == nullptr) return false;
    parts.content.push_back(image_part(url_of(*source)));
  } else if (type == "thinking") {
    parts.reasoning += text_member(block, "thinking");
    parts.thought = true;
  } else if (type == "tool_use") {
    const Json* const input = member(block, "input");
    parts.calls.push_back(function_call(text_member(block, "id"), text_member(block, "name"),
                                        dump_json(input == nullptr ? Json::object() : *input)));
  } else if (type == "tool_result" && role == "user") {
    add_result(block, messages);
  } else {
    return type == "redacted_thinking";
  }
  return true;
}

bool add_turn(const Json& said, Json& messages) {
  const std::string role = text_member(said, "role");
  const Json* const content = member(said, "content");
  // Where a message of the system goes depends on the model's template.
  if ((role != "user" && role != "assistant") || content == nullptr) return false;
  Json message = {{"role", role}};
  if (content->is_string()) {
    message["content"] = *content;
    messages.push_back(std::move(message));
    return true;
  }
  if (!content->is_array()) return false;
  TurnParts parts;
  for (const Json& block : *content)
    if (!add_block(block, role, parts, messages)) return false;
  if (parts.thought) message["reasoning"] = std::move(parts.reasoning);
  if (!parts.calls.empty()) message["tool_calls"] = std::move(parts.calls);
  if (parts.content.size() == 1 && text_member(parts.content[0], "type") == "text")
    message["content"] = parts.content[0]["text"];
  else if (!parts.content.empty())
    message["content"] = std::move(parts.content);
  if (role == "assistant" || message.contains("content")) messages.push_back(std::move(message));
  return true;
}

void set_thinking(const Json& body, Json& chat) {
  const Json* const thinking = member(body, "thinking");
  const Json* const output = member(body, "output_config");
  if (const std::string effort = output == nullptr ? "" : text_member(*output, "effort");
      !effort.empty())
    chat["reasoning_effort"] = effort;
  if (thinking != nullptr && text_member(*thinking, "type") == "disabled")
    chat["reasoning_effort"] = "none";
}

std::optional<Json> engine_messages(const Json& body) {
  Json chat = Json::object(), messages = Json::array();
  if (const Json* const system = member(body, "system"); system != nullptr) {
    if (!system->is_string() && !system->is_array()) return std::nullopt;
    if (std::string text = joined(*system, "", true); !text.empty())
      messages.push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const Json* const all = list_member(body, "messages");
  const Json* const tools = list_member(body, "tools");
  if (all == nullptr || all->empty() || tools == nullptr) return std::nullopt;
  for (const Json& message : *all)
    if (!add_turn(message, messages)) return std::nullopt;
  for (const Json& tool : *tools) {
    Json function = Json::object();
    copy_members(tool, {"name", "description", "strict", "defer_loading"}, function);
    if (const Json* const schema = member(tool, "input_schema")) function["parameters"] = *schema;
    chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  set_thinking(body, chat);
  chat["messages"] = std::move(messages);
  return chat;
}

// ---- OpenAI's responses

// An item may go on with what the assistant said before. Returns: that message.
Json& assistant(Json& messages, const char* without) {
  if (messages.empty() || messages.back()["role"] != "assistant" ||
      messages.back().contains(without))
    messages.push_back({{"role", "assistant"}});
  return messages.back();
}

// The first text of a list of parts, or the text itself.
std::optional<std::string> first_text(const Json& item, const char* name) {
  const Json* const content = member(item, name);
  if (content == nullptr) return std::nullopt;
  if (content->is_string()) return content->get<std::string>();
  const Json* const text =
      content->is_array() && !content->empty() ? member((*content)[0], "text") : nullptr;
  return text == nullptr || !text->is_string() ? std::nullopt
                                               : std::optional(text->get<std::string>());
}

// The parts of a message, or of what a tool gave.
std::optional<Json> parts_of(const Json& content) {
  if (content.is_string()) return content;
  if (!content.is_array()) return std::nullopt;
  Json parts = Json::array();
  for (const Json& part : content) {
    const std::string type = text_member(part, "type");
    if (type == "input_image" && !text_member(part, "image_url").empty())
      parts.push_back(image_part(text_member(part, "image_url")));
    else if (type == "input_text" || type == "output_text" || type == "text")
      parts.push_back(text_part(text_member(part, "text")));
    else
      return std::nullopt;
  }
  return parts;
}

bool add_said(const Json& item, Json& messages) {
  const std::string role = text_member(item, "role");
  if (role == "assistant") {
    const auto text = first_text(item, "content");
    if (text) assistant(messages, "content")["content"] = *text;
    return text.has_value();
  }
  const Json* const content = member(item, "content");
  auto parts = content == nullptr || role.empty() ? std::nullopt : parts_of(*content);
  if (parts) messages.push_back({{"role", role}, {"content", std::move(*parts)}});
  return parts.has_value();
}

// Returns: false for an item that is not known here.
bool add_item(const Json& item, Json& messages) {
  const std::string type = text_member(item, "type");
  if (type == "function_call") {
    if (item.contains("namespace")) return false;
    assistant(messages, "")["tool_calls"].push_back(function_call(
        text_member(item, "call_id"), text_member(item, "name"), text_member(item, "arguments")));
  } else if (type == "function_call_output") {
    const Json* const output = member(item, "output");
    auto content = output == nullptr ? std::nullopt : parts_of(*output);
    if (!content) return false;
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", text_member(item, "call_id")},
                        {"content", std::move(*content)}});
  } else if (type == "reasoning") {
    if (!text_member(item, "encrypted_content").empty()) return false;
    const auto text = first_text(item, "content"), summary = first_text(item, "summary");
    assistant(messages, "reasoning")["reasoning"] = text ? *text : summary.value_or("");
  } else if (type == "message" || type.empty()) {
    return add_said(item, messages);
  } else {
    return false;
  }
  return true;
}

std::optional<Json> engine_responses(const Json& body) {
  for (const char* const kept : {"previous_response_id", "conversation", "prompt"})
    if (member(body, kept) != nullptr) return std::nullopt;
  Json chat = Json::object(), messages = Json::array();
  if (std::string said = text_member(body, "instructions"); !said.empty())
    messages.push_back({{"role", "system"}, {"content", std::move(said)}});
  const Json* const input = member(body, "input");
  if (input != nullptr && input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
  } else {
    const Json* const items = list_member(body, "input");
    if (items == nullptr || items->empty()) return std::nullopt;
    for (const Json& item : *items)
      if (!add_item(item, messages)) return std::nullopt;
  }
  const Json* const tools = list_member(body, "tools");
  if (tools == nullptr) return std::nullopt;
  for (const Json& tool : *tools) {
    if (text_member(tool, "type") != "function") return std::nullopt;
    Json function = tool;
    function.erase("type");
    chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  if (const Json* const reasoning = member(body, "reasoning"))
    if (std::string effort = text_member(*reasoning, "effort"); !effort.empty())
      chat["reasoning_effort"] = std::move(effort);
  chat["messages"] = std::move(messages);
  return chat;
}

}  // namespace

bool is_billing_header(std::string_view text) {
  return text.starts_with("x-anthropic-billing-header");
}

std::optional<Json> engine_chat(std::string_view path, const Json& body) {
  if (!body.is_object()) return std::nullopt;
  auto chat = path == "/v1/messages"    ? engine_messages(body)
              : path == "/v1/responses" ? engine_responses(body)
                                        : std::nullopt;
  if (chat) copy_members(body, {"chat_template_kwargs"}, *chat);
  return chat;
}

}  // namespace mc::serve
