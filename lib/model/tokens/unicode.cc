#include "model/tokens/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/result.h"
#include "model/tokens/text.h"

namespace mc::model {
namespace {

constexpr char32_t kRawByte = 0x110000;  // and on: a byte that is not UTF-8

uint32_t bit_of(int category) { return 1u << category; }
bool has_category(char32_t code, uint32_t categories) {
  if (code >= kRawByte) return false;
  const int category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return (bit_of(category) & categories) != 0;
}
const uint32_t kLetters = bit_of(UTF8PROC_CATEGORY_LU) | bit_of(UTF8PROC_CATEGORY_LL) |
                          bit_of(UTF8PROC_CATEGORY_LT) | bit_of(UTF8PROC_CATEGORY_LM) |
                          bit_of(UTF8PROC_CATEGORY_LO);
const uint32_t kNumbers =
    bit_of(UTF8PROC_CATEGORY_ND) | bit_of(UTF8PROC_CATEGORY_NL) | bit_of(UTF8PROC_CATEGORY_NO);
const uint32_t kMarks =
    bit_of(UTF8PROC_CATEGORY_MN) | bit_of(UTF8PROC_CATEGORY_MC) | bit_of(UTF8PROC_CATEGORY_ME);
const uint32_t kPunctuation = bit_of(UTF8PROC_CATEGORY_PC) | bit_of(UTF8PROC_CATEGORY_PD) |
                              bit_of(UTF8PROC_CATEGORY_PS) | bit_of(UTF8PROC_CATEGORY_PE) |
                              bit_of(UTF8PROC_CATEGORY_PI) | bit_of(UTF8PROC_CATEGORY_PF) |
                              bit_of(UTF8PROC_CATEGORY_PO);
const uint32_t kOthers =
    bit_of(UTF8PROC_CATEGORY_CC) | bit_of(UTF8PROC_CATEGORY_CF) | bit_of(UTF8PROC_CATEGORY_CO);

bool only_below(std::string_view text, unsigned char limit) {
  return std::all_of(text.begin(), text.end(),
                     [limit](char c) { return static_cast<unsigned char>(c) < limit; });
}

// Characters below this first byte are the same in every form.
unsigned char first_changed(NormalForm form) {
  return form == NormalForm::kNfc ? 0xCC : 0x80;  // U+0300; U+0080
}

int combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

// Each run of combining marks by class, in n log n steps: utf8proc sorts a run in n^2.
void sort_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto starts = [](utf8proc_int32_t code) { return combining_class(code) == 0; };
  for (auto at = codes.begin(); at != codes.end();) {
    const auto run = std::find_if_not(at, codes.end(), starts);
    at = std::find_if(run, codes.end(), starts);
    std::stable_sort(run, at, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
  }
}

void append_normalized(std::string_view valid, NormalForm form, std::string& out) {
  constexpr int kMost = 18;  // characters of a decomposition: U+FDFA's
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(valid.size());
  while (!valid.empty()) {
    const Character c = first_character(valid);
    utf8proc_int32_t parts[kMost];
    int boundary = 0;
    const auto size = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code), parts, kMost,
                                              options, &boundary);
    MC_CHECK(size >= 0 && size <= kMost);  // the text is valid
    codes.insert(codes.end(), parts, parts + size);
    valid.remove_prefix(c.size);
  }
  sort_marks(codes);
  const auto left =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), options);
  MC_CHECK(left >= 0);
  codes.resize(static_cast<size_t>(left));
  for (const utf8proc_int32_t code : codes) append_character(static_cast<char32_t>(code), out);
}

}  // namespace

bool is_letter(char32_t code) { return has_category(code, kLetters); }
bool is_number(char32_t code) { return has_category(code, kNumbers); }
bool is_mark(char32_t code) { return has_category(code, kMarks); }
bool is_nonspacing_mark(char32_t code) { return has_category(code, bit_of(UTF8PROC_CATEGORY_MN)); }
bool is_punctuation(char32_t code) { return has_category(code, kPunctuation); }
bool is_other(char32_t code) { return has_category(code, kOthers); }
bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 ||
         has_category(code, bit_of(UTF8PROC_CATEGORY_ZS) | bit_of(UTF8PROC_CATEGORY_ZL) |
                                bit_of(UTF8PROC_CATEGORY_ZP));
}
bool is_ascii_punctuation(char32_t code) {
  if (code <= ' ' || code >= 0x7F) return false;
  const char32_t letter = code | 0x20;
  return !(code >= '0' && code <= '9') && !(letter >= 'a' && letter <= 'z');
}

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t size = character_size(text);
  if (size == 0) return {kRawByte + byte(0), 1};
  char32_t code = size == 1 ? byte(0) : byte(0) & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, size};
}

Character last_character(std::string_view text) {
  for (size_t size = 2; size <= std::min<size_t>(4, text.size()); ++size)
    if (const std::string_view end = text.substr(text.size() - size); character_size(end) == size)
      return first_character(end);
  return first_character(text.substr(text.size() - 1));
}

void append_character(char32_t code, std::string& out) {
  if (code >= kRawByte) {
    out += static_cast<char>(code - kRawByte);
    return;
  }
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t size =
        static_cast<unsigned char>(text[at]) < 0x80 ? 1 : character_size(text.substr(at));
    if (size == 0) break;
    at += size;
  }
  return at;
}

size_t invalid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && character_size(text.substr(at)) == 0) ++at;
  return at;
}

std::string normalized(std::string_view text, NormalForm form) {
  if (only_below(text, first_changed(form))) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const size_t valid = valid_prefix(text);
    if (valid > 0) append_normalized(text.substr(0, valid), form, out);
    text.remove_prefix(valid);
    const size_t invalid = invalid_prefix(text);
    out += text.substr(0, invalid);
    text.remove_prefix(invalid);
  }
  return out;
}

std::string lower_case(std::string_view text) {
  constexpr char32_t kCapitalDottedI = 0x130;  // the one that becomes two characters
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    if (c.code < 0x80)
      out += static_cast<char>(c.code >= 'A' && c.code <= 'Z' ? c.code + ('a' - 'A') : c.code);
    else if (c.code >= kRawByte)
      out += text[0];
    else if (c.code == kCapitalDottedI)
      out += "i\xCC\x87";
    else
      append_character(
          static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code))), out);
    text.remove_prefix(c.size);
  }
  return out;
}

size_t grapheme_size(std::string_view text) {
  Character before = first_character(text);
  size_t size = before.size;
  utf8proc_int32_t state = 0;
  while (size < text.size()) {
    const Character next = first_character(text.substr(size));
    if (next.code >= kRawByte ||
        utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state))
      break;
    size += next.size;
    before = next;
  }
  return size;
}

}  // namespace mc::model
