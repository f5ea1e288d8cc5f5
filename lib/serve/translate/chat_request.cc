#include "serve/translate/chat_request.h"

#include <algorithm>

#include "base/json.h"
#include "base/units.h"
#include "serve/translate/chat_request_impl.h"

namespace mc::serve {

void copy_members(const Json& from, std::initializer_list<const char*> names, Json& to) {
  for (const char* const name : names)
    if (const Json* const value = member(from, name)) to[name] = *value;
}

void copy_extensions(const Json& from, Json& to) {
  copy_members(from,
               {"cache_salt", "priority", "cache_control", "seed", "min_p", "repetition_penalty",
                "presence_penalty", "frequency_penalty", "logit_bias", "ignore_eos", "min_tokens",
                "stop_token_ids", "structured_outputs", "chat_template_kwargs", "documents"},
               to);
}

std::string text_member(const Json& object, const char* key) {
  const Json* const text = member(object, key);
  return text != nullptr && text->is_string() ? text->get<std::string>() : "";
}

tl::expected<Json, ApiError> text_parts(const Json& content, const char* param,
                                        std::initializer_list<std::string_view> types) {
  if (content.is_string()) return content;
  if (!content.is_array()) return not_taken(param, "a content that is neither text nor parts");
  Json parts = Json::array();
  for (const Json& part : content) {
    const std::string type = text_member(part, "type");
    const Json* const text = member(part, "text");
    if (std::find(types.begin(), types.end(), type) == types.end() || text == nullptr ||
        !text->is_string())
      return not_taken(param, "a content part of type '" + escape(type) +
                                  "' is not supported by own workers: they take text");
    Json made = {{"type", "text"}, {"text", *text}};
    copy_members(part, {"cache_control"}, made);
    parts.push_back(std::move(made));
  }
  return parts;
}

}  // namespace mc::serve
