// Makes chats of requests of other APIs as external engines do, so that an engine can be asked for
// their tokens. Where the text of the prompt would differ by a space, so would its blocks: this is
// not the chat that own workers answer (serve/translate/chat_request.h).
//
// Pure. Thread: values. Source: what vLLM 0.32 makes of them before it renders the template.
#pragma once
#include <optional>
#include <string_view>

#include "base/json_fwd.h"

namespace mc::serve {

// What an engine renders of the body of a POST to that path: `messages`, `tools` and what else the
// prompt's text depends on. Nothing for other paths, and for what only the engine can know: an
// earlier response that it keeps, tools of its own, files.
std::optional<Json> engine_chat(std::string_view path, const Json& body);

// Claude Code begins its system prompt with such a text. It has another number in every request,
// so it is left out, as engines do: else no prompt would begin as the one before.
bool is_billing_header(std::string_view text);

}  // namespace mc::serve
