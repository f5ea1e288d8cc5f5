// What both translations use. Private to *_request.cc.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "base/json_fwd.h"
#include "serve/answers/api_error.h"

namespace mc::serve {

inline tl::unexpected<ApiError> not_taken(std::string param, std::string message) {
  return tl::unexpected(ApiError{400, std::move(message), std::move(param), ""});
}

// Copies members that both have under the same name.
void copy_members(const Json& from, std::initializer_list<const char*> names, Json& to);
// Those that a chat has beside the standard.
void copy_extensions(const Json& from, Json& to);

// A string; or parts of text, of one of the types: "" is none of these.
tl::expected<Json, ApiError> text_parts(const Json& content, const char* param,
                                        std::initializer_list<std::string_view> types);
// The text of a member; "": it is missing or no string.
std::string text_member(const Json& object, const char* key);

}  // namespace mc::serve
