// Classifies characters and normalizes text, for tokenizers.
//
// Bytes that are not UTF-8 are characters of their own. They are in no class, and stay as they are.
//
// Thread: any. Pure. Source: utf8proc's tables of the Unicode Character Database; UAX 15
// (normalization forms), UAX 29 (grapheme clusters).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mc::model {

// Classes are sets of general categories, or a property where its name is given.
bool is_letter(char32_t code);             // L
bool is_number(char32_t code);             // N
bool is_mark(char32_t code);               // M
bool is_nonspacing_mark(char32_t code);    // Mn
bool is_punctuation(char32_t code);        // P
bool is_other(char32_t code);              // Cc, Cf, Co
bool is_white_space(char32_t code);        // White_Space
bool is_ascii_punctuation(char32_t code);  // what is printable in ASCII, but letters and digits

// The character a text starts with, and its bytes (at least 1; the text is not empty).
struct Character {
  char32_t code = 0;  // 0x110000 and more: a byte that is not UTF-8
  size_t size = 1;
};
Character first_character(std::string_view text);
// The last character of a text that is not empty.
Character last_character(std::string_view text);
void append_character(char32_t code, std::string& out);
// Bytes of the text's longest start without, or with nothing but, bytes that are not UTF-8.
size_t valid_prefix(std::string_view text);
size_t invalid_prefix(std::string_view text);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
std::string normalized(std::string_view text, NormalForm form);
// Each character by itself: without the rule for a final sigma.
std::string lower_case(std::string_view text);
// Bytes of the grapheme cluster that valid text starts with; the text is not empty.
size_t grapheme_size(std::string_view text);

}  // namespace mc::model
