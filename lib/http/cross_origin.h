// Lets pages of other sites ask this server, those that its owner named (CORS).
//
// A browser asks first whether a page may (a preflight), without the page's key, and shows the page
// only answers that name its origin. Source: the Fetch standard.
//
// Thread: any. Pure.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace mc::http {

using HeaderMap = std::map<std::string, std::string>;  // names in lower case
using HeaderLines = std::vector<std::pair<std::string, std::string>>;

// "https://chat.example", or "*" for every site, as an option has it. Errors: kInvalid.
Result<> check_origins(const std::vector<std::string>& origins);
bool allows_origin(std::string_view origin, const std::vector<std::string>& origins);

// What an answer to that page says; nothing for who names no origin, or another.
HeaderLines cross_origin_headers(const HeaderMap& request, const std::vector<std::string>& origins);

// Of the answer to a preflight, which has no body; nothing for any other request.
std::optional<HeaderLines> preflight_answer(std::string_view method, const HeaderMap& request,
                                            const std::vector<std::string>& origins);

}  // namespace mc::http
