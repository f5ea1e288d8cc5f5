// Makes chats of requests of other APIs, so that own workers answer them: OpenAI's responses and
// Anthropic's messages.
//
// What cannot be said as a chat, and would change the answer, is refused by its name; whole members
// are before (serve/request/request_members.h). What a chat has beside the standard (seed,
// cache_salt, priority, penalties, ..) may stand in these too.
//
// Pure. Thread: values. Source: OpenAI API reference, responses; Anthropic API reference, messages.
#pragma once
#include <tl/expected.hpp>

#include "base/json_fwd.h"
#include "serve/answers/api_error.h"

namespace mc::serve {

// `body` is an object; what comes is the body of a chat.
tl::expected<Json, ApiError> chat_of_responses(const Json& body);
tl::expected<Json, ApiError> chat_of_messages(const Json& body);

// An error about a member of the chat, as one about the member that it was made of.
ApiError error_of_responses(ApiError error);
ApiError error_of_messages(ApiError error);

}  // namespace mc::serve
