// What own workers do with each member of a request, by API.
//
// A member that would change the answer, and is not done, is refused by its name; one that changes
// nothing here is let be. A client gets the names of those, and of unknown ones, with its answer
// (x-mc-ignored): nothing that it asked for is ignored in silence. docs/members.md has the table.
//
// Thread: any. Source: the types of the packages openai, anthropic and vllm.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "base/json_fwd.h"
#include "serve/answers/api_error.h"

namespace mc::serve {

enum class Api : uint8_t { kCompletions, kChats, kResponses, kMessages, kTokenize, kDetokenize };

enum class MemberFate : uint8_t {
  kUnknown,
  kDone,      // read; a value that is wrong is refused there
  kTemplate,  // given to the model's chat template; without one refused
  kRefused,   // unless it asks for what is done anyway
  kNoEffect,  // nothing here depends on it
};
MemberFate fate_of(std::string_view name, Api api);
std::vector<std::string_view> known_members(Api api);

// Fails for the first member that is refused. `templated`: there is a chat template.
tl::expected<void, ApiError> check_members(const Json& body, Api api, bool templated);

// The names of members that asked for something and had no effect, as "store, metadata"; of the
// first 16, and as far as they can stand in a header. `unread`: one that only some models read, and
// this one does not.
std::string ignored_members(const Json& body, Api api, std::string_view unread = {});

}  // namespace mc::serve
