// Characters of UTF-8 text, and what Python's strings do with them. Case is that of ASCII.
//
// Bytes that are not UTF-8 count as a character each. Pure. Thread: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mc::model::jinja {

size_t character_bytes(std::string_view text, size_t at);  // of the character at `at`: 1 or more
uint32_t code_of(std::string_view character);
void append_character(std::string& out, uint32_t code);
size_t characters(std::string_view text);
std::vector<std::string_view> split_characters(std::string_view text);
bool space(uint32_t code);      // str.isspace
bool printable(uint32_t code);  // str.isprintable, but for characters that Unicode has not assigned

// Strips characters of `of` from the ends; none: white space.
std::string_view stripped(std::string_view text, std::optional<std::string_view> of = {},
                          bool left = true, bool right = true);
// `most` < 0: all. Without a separator: at runs of white space.
std::vector<std::string> split(std::string_view text, std::optional<std::string_view> by,
                               int64_t most = -1);
std::vector<std::string> split_right(std::string_view text, std::optional<std::string_view> by,
                                     int64_t most = -1);
std::vector<std::string> lines(std::string_view text, bool keep_ends = false);
std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t most = -1);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalized(std::string_view text);

}  // namespace mc::model::jinja
