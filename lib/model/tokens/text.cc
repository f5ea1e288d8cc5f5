#include "model/tokens/text.h"

#include <array>
#include <unordered_map>

namespace mc::model {
namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The second byte rules out overlong forms, surrogates and what lies beyond U+10FFFF.
bool second_fits(unsigned char first, unsigned char second) {
  if (first == 0xE0) return second >= 0xA0;
  if (first == 0xED) return second < 0xA0;
  if (first == 0xF0) return second >= 0x90;
  if (first == 0xF4) return second < 0x90;
  return true;
}

// Printable bytes of Latin-1 stand for themselves, the other 68 for U+0100 and on.
std::array<std::string, 256> make_letters() {
  std::array<std::string, 256> letters;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const unsigned code = printable ? byte : next++;
    if (code < 128)
      letters[byte] = std::string(1, static_cast<char>(code));
    else
      letters[byte] = {static_cast<char>(0xC0 | (code >> 6)),
                       static_cast<char>(0x80 | (code & 0x3F))};
  }
  return letters;
}

const std::array<std::string, 256>& letters_of_bytes() {
  static const std::array<std::string, 256> letters = make_letters();
  return letters;
}

}  // namespace

LeadingBytes leading_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t want = first < 0x80                    ? 1
                      : first >= 0xC2 && first < 0xE0 ? 2
                      : first >= 0xE0 && first < 0xF0 ? 3
                      : first >= 0xF0 && first < 0xF5 ? 4
                                                      : 0;
  if (want == 0) return {};
  size_t have = 1;
  while (have < want && have < text.size() && continues(text[have]) &&
         (have > 1 || second_fits(first, static_cast<unsigned char>(text[1]))))
    ++have;
  return {have, have == want, have < want && have == text.size()};
}

size_t character_size(std::string_view text) {
  if (text.empty()) return 0;
  const LeadingBytes first = leading_bytes(text);
  return first.whole ? first.size : 0;
}

std::string marks_to_spaces(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    const bool mark = piece.starts_with(kSpaceMark);
    out += mark ? ' ' : piece[0];
    piece.remove_prefix(mark ? kSpaceMark.size() : 1);
  }
  return out;
}

std::string bytes_to_letters(std::string_view bytes) {
  std::string letters;
  for (const char c : bytes) letters += letters_of_bytes()[static_cast<unsigned char>(c)];
  return letters;
}

std::optional<std::string> letters_to_bytes(std::string_view letters) {
  static const std::unordered_map<std::string_view, char> back = [] {
    std::unordered_map<std::string_view, char> map;
    for (size_t i = 0; i < 256; ++i) map.emplace(letters_of_bytes()[i], static_cast<char>(i));
    return map;
  }();
  std::string bytes;
  while (!letters.empty()) {
    const size_t size = character_size(letters);
    const auto it = back.find(letters.substr(0, size));
    if (size == 0 || it == back.end()) return std::nullopt;
    bytes += it->second;
    letters.remove_prefix(size);
  }
  return bytes;
}

std::optional<uint8_t> byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  size_t value = 0;
  for (const char c : piece.substr(3, 2)) {
    const size_t digit = std::string_view("0123456789ABCDEF").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

}  // namespace mc::model
