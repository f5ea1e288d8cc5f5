// Decodes UTF-8 and the letters that byte-level vocabularies use for bytes.
//
// Thread: any. Pure. Source: Unicode 15, table 3-7 (well-formed UTF-8); GPT-2's byte encoder.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mc::model {

// What a text that is not empty begins with: a well-formed character (`whole`), or bytes that are
// none; `cut`: more bytes may make them one. `size`: bytes of it, 1 or more.
struct LeadingBytes {
  size_t size = 1;
  bool whole = false, cut = false;
};
LeadingBytes leading_bytes(std::string_view text);
// Bytes of the well-formed character that text starts with; 0: it starts with none.
size_t character_size(std::string_view text);

// What vocabularies write for a space: U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
std::string marks_to_spaces(std::string_view piece);

// Every byte as a printable letter (space is "\u0120"), and back; none where a letter is no byte.
inline constexpr size_t kLettersGrow = 2;  // bytes of a letter, at most
std::string bytes_to_letters(std::string_view bytes);
std::optional<std::string> letters_to_bytes(std::string_view letters);

// The byte of a piece such as "<0x0A>": two digits, letters in upper case; none: not such a piece.
std::optional<uint8_t> byte_of_piece(std::string_view piece);

}  // namespace mc::model
