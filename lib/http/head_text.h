// Texts of HTTP heads: an answer's, and what a request's target says.
//
// Thread: any.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc::http {

// An answer of that status has no body (RFC 9110).
inline bool bodyless(int status) { return status == 204 || status == 304; }
// The head of an answer, up to the blank line. `length` absent: chunked, or up to the connection's
// end for HTTP/1.0. One without a body says neither.
std::string answer_head(int status, std::string_view content_type,
                        const std::vector<std::pair<std::string, std::string>>& extra,
                        const size_t* length, bool http10, bool keep_alive);

std::string decoded_path(const std::string& text);  // "/a%20b" is "/a b"
std::map<std::string, std::string> decoded_query(const std::string& text);

}  // namespace mc::http
