// Classifies characters and composes text (NFC), for tokenizers.
//
// Bytes that are not UTF-8 are characters of their own, of class kOther, and stay as they are.
//
// Thread: any. Pure. Source: Unicode, general categories, White_Space, UAX 15 (normalization).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace mc::model {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

CharClass class_of(char32_t code);

// The character a text starts with, and its bytes (at least 1; the text is not empty).
struct Character {
  char32_t code = 0;
  CharClass kind = CharClass::kOther;
  size_t size = 1;
};
Character first_character(std::string_view text);

std::string composed(std::string_view text);

}  // namespace mc::model
