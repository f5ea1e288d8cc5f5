#include "model/text/unicode.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "model/text/text.h"
#include "model/text/unicode_tables.h"

namespace mc::model {
namespace {

constexpr uint64_t kCodeBits = 21, kCodeMask = (uint64_t{1} << kCodeBits) - 1;
// Hangul syllables are computed from their letters.
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowelJamo = 0x1161, kTails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;
constexpr char32_t kRawByte = 0x110000;  // and on: a byte that is not UTF-8

uint64_t pair_key(char32_t first, char32_t second) { return uint64_t{first} << 32 | second; }

const std::unordered_map<uint64_t, char32_t>& pairs() {
  static const std::unordered_map<uint64_t, char32_t> map = [] {
    std::unordered_map<uint64_t, char32_t> m;
    for (size_t i = 0; i < kDecompositionsSize; ++i) {
      const uint64_t d = kDecompositions[i];
      if ((d & 1) == 0) continue;
      m.emplace(pair_key(static_cast<char32_t>(d >> 22 & kCodeMask),
                         static_cast<char32_t>(d >> 1 & kCodeMask)),
                static_cast<char32_t>(d >> 43));
    }
    return m;
  }();
  return map;
}

uint8_t combining_class(char32_t code) {
  const uint32_t* end = kCombining + kCombiningSize;
  const uint32_t* at = std::lower_bound(kCombining, end, static_cast<uint32_t>(code) << 8);
  return at != end && *at >> 8 == code ? static_cast<uint8_t>(*at & 0xFF) : 0;
}

void decompose(char32_t code, std::vector<char32_t>& out) {
  if (code - kSyllables < kSyllableCount) {
    const char32_t i = code - kSyllables;
    out.push_back(kLeads + i / (kVowelCount * kTailCount));
    out.push_back(kVowelJamo + i / kTailCount % kVowelCount);
    if (i % kTailCount != 0) out.push_back(kTails + i % kTailCount);
    return;
  }
  const uint64_t* end = kDecompositions + kDecompositionsSize;
  const uint64_t* at = std::lower_bound(kDecompositions, end, uint64_t{code} << 43);
  if (at == end || *at >> 43 != code) return out.push_back(code);
  decompose(static_cast<char32_t>(*at >> 22 & kCodeMask), out);
  if (const auto second = static_cast<char32_t>(*at >> 1 & kCodeMask); second != 0)
    decompose(second, out);
}

char32_t join(char32_t first, char32_t second) {  // 0: they do not
  if (first - kLeads < kLeadCount && second - kVowelJamo < kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowelJamo)) * kTailCount;
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0 &&
      second > kTails && second - kTails < kTailCount)
    return first + (second - kTails);
  const auto it = pairs().find(pair_key(first, second));
  return it == pairs().end() ? 0 : it->second;
}

void compose(std::vector<char32_t>& codes) {
  size_t kept = 0;
  ptrdiff_t starter = -1;
  int last = 0;  // combining class of what was kept after the starter; -1: nothing was
  for (const char32_t code : codes) {
    const int order = combining_class(code);
    if (starter >= 0 && (last < order || last == -1)) {
      if (const char32_t joined = join(codes[static_cast<size_t>(starter)], code)) {
        codes[static_cast<size_t>(starter)] = joined;
        continue;
      }
    }
    if (order == 0) starter = static_cast<ptrdiff_t>(kept);
    last = order == 0 ? -1 : order;
    codes[kept++] = code;
  }
  codes.resize(kept);
}

void append(char32_t code, std::string& out) {
  const auto tail = [&](unsigned shift) {
    out += static_cast<char>(0x80 | (code >> shift & 0x3F));
  };
  if (code >= kRawByte) {
    out += static_cast<char>(code - kRawByte);
  } else if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace

CharClass class_of(char32_t code) {
  const uint32_t* end = kClassRuns + kClassRunsSize;
  const uint32_t* at = std::upper_bound(kClassRuns, end, static_cast<uint32_t>(code) << 2 | 3);
  return static_cast<CharClass>(at[-1] & 3);
}

Character first_character(std::string_view text) {
  const size_t size = character_size(text);
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (size == 0) return {kRawByte + byte(0), CharClass::kOther, 1};
  char32_t code = size == 1 ? byte(0) : byte(0) & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) code = code << 6 | (byte(i) & 0x3F);
  return {code, class_of(code), size};
}

std::string composed(std::string_view text) {
  constexpr char kFirstMark = '\xCC';  // U+0300: below it every text is composed
  const auto early = [](char c) {
    return static_cast<unsigned char>(c) < static_cast<unsigned char>(kFirstMark);
  };
  if (std::all_of(text.begin(), text.end(), early)) return std::string(text);
  std::vector<char32_t> codes;
  while (!text.empty()) {
    const Character c = first_character(text);
    decompose(c.code, codes);
    text.remove_prefix(c.size);
  }
  for (size_t i = 0; i < codes.size();) {  // marks of a run in the order of their classes
    size_t end = i;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    std::stable_sort(
        codes.begin() + static_cast<ptrdiff_t>(i), codes.begin() + static_cast<ptrdiff_t>(end),
        [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    i = end + 1;
  }
  compose(codes);
  std::string out;
  for (const char32_t code : codes) append(code, out);
  return out;
}

}  // namespace mc::model
