#include "model/template/characters.h"

#include <algorithm>

namespace mc::model::jinja {
namespace {

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
char up(char c) { return is_lower(c) ? static_cast<char>(c - 32) : c; }
char down(char c) { return is_upper(c) ? static_cast<char>(c + 32) : c; }

bool line_end(uint32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool among(std::string_view c, std::optional<std::string_view> of) {
  return of ? of->find(c) != std::string_view::npos : space(code_of(c));
}

size_t last_character(std::string_view text) {  // where it begins
  size_t at = text.size() - 1;
  for (int back = 0; back < 3 && at > 0; ++back, --at)
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) break;
  return at + character_bytes(text, at) == text.size() ? at : text.size() - 1;
}

}  // namespace

size_t character_bytes(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t size = first < 0xC2 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 1;
  if (at + size > text.size()) return 1;
  for (size_t i = 1; i < size; ++i)
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return 1;
  return size;
}

uint32_t code_of(std::string_view c) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(c[i]));
  };
  switch (c.size()) {
    case 1: return byte(0);
    case 2: return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3: return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    case 4:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
    default: return 0;
  }
}

void append_character(std::string& out, uint32_t code) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) code = 0xFFFD;
  const auto tail = [&](uint32_t bits) { out += static_cast<char>(0x80 | (bits & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(code);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(code >> 6);
    tail(code);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(code >> 12);
    tail(code >> 6);
    tail(code);
  }
}

size_t characters(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; at < text.size(); at += character_bytes(text, at)) ++n;
  return n;
}

std::vector<std::string_view> split_characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0, size = 0; at < text.size(); at += size) {
    size = character_bytes(text, at);
    out.push_back(text.substr(at, size));
  }
  return out;
}

bool space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool printable(uint32_t c) {
  if (c == ' ') return true;
  if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad || space(c)) return false;
  if ((c >= 0x200b && c <= 0x200f) || (c >= 0x202a && c <= 0x202e)) return false;
  if ((c >= 0x2060 && c <= 0x206f) || c == 0xfeff || (c >= 0xfff0 && c <= 0xfffb)) return false;
  if ((c >= 0x600 && c <= 0x605) || c == 0x61c || c == 0x6dd || c == 0x70f) return false;
  return (c < 0xd800 || c > 0xf8ff) && c < 0xe0000;
}

std::string_view stripped(std::string_view text, std::optional<std::string_view> of, bool left,
                          bool right) {
  while (left && !text.empty()) {
    const size_t size = character_bytes(text, 0);
    if (!among(text.substr(0, size), of)) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    const size_t at = last_character(text);
    if (!among(text.substr(at), of)) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

namespace {

std::vector<std::string> split_words(std::string_view text, int64_t most) {
  std::vector<std::string> out;
  text = stripped(text, {}, true, false);
  while (!text.empty()) {
    if (most >= 0 && static_cast<int64_t>(out.size()) == most) {
      out.emplace_back(stripped(text, {}, false, true));
      break;
    }
    size_t end = 0;
    while (end < text.size() && !space(code_of(text.substr(end, character_bytes(text, end)))))
      end += character_bytes(text, end);
    out.emplace_back(text.substr(0, end));
    text = stripped(text.substr(end), {}, true, false);
  }
  return out;
}

}  // namespace

std::vector<std::string> split(std::string_view text, std::optional<std::string_view> by,
                               int64_t most) {
  if (!by) return split_words(text, most);
  std::vector<std::string> out;
  while (most < 0 || static_cast<int64_t>(out.size()) < most) {
    const size_t at = text.find(*by);
    if (at == std::string_view::npos) break;
    out.emplace_back(text.substr(0, at));
    text.remove_prefix(at + by->size());
  }
  out.emplace_back(text);
  return out;
}

std::vector<std::string> split_right(std::string_view text, std::optional<std::string_view> by,
                                     int64_t most) {
  std::vector<std::string> out;
  if (!by) {
    text = stripped(text, {}, false, true);
    while (!text.empty() && (most < 0 || static_cast<int64_t>(out.size()) < most)) {
      size_t begin = text.size();
      while (begin > 0) {
        const size_t at = last_character(text.substr(0, begin));
        if (space(code_of(text.substr(at, begin - at)))) break;
        begin = at;
      }
      out.emplace_back(text.substr(begin));
      text = stripped(text.substr(0, begin), {}, false, true);
    }
    text = stripped(text, {}, true, false);
    if (!text.empty()) out.emplace_back(text);
  } else {
    while (most < 0 || static_cast<int64_t>(out.size()) < most) {
      const size_t at = text.rfind(*by);
      if (at == std::string_view::npos) break;
      out.emplace_back(text.substr(at + by->size()));
      text = text.substr(0, at);
    }
    out.emplace_back(text);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    size_t size = character_bytes(text, at);
    if (!line_end(code_of(text.substr(at, size)))) {
      at += size;
      continue;
    }
    if (text.substr(at).starts_with("\r\n")) size = 2;
    out.emplace_back(text.substr(begin, at - begin + (keep_ends ? size : 0)));
    begin = at += size;
  }
  if (begin < text.size()) out.emplace_back(text.substr(begin));
  return out;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t most) {
  std::string out;
  if (from.empty()) {  // before each character, and at the end
    int64_t done = 0;
    for (size_t at = 0, size = 0; at < text.size(); at += size) {
      if (most < 0 || done++ < most) out += to;
      size = character_bytes(text, at);
      out += text.substr(at, size);
    }
    if (most < 0 || done < most) out += to;
    return out;
  }
  for (int64_t done = 0; most < 0 || done < most; ++done) {
    const size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  out += text;
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), up);
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), down);
  return out;
}

std::string title(std::string_view text) {
  std::string out = lower(text);
  bool inside = false;
  for (char& c : out) {
    const bool letter = is_lower(c) || static_cast<unsigned char>(c) >= 0x80;
    if (letter && !inside) c = up(c);
    inside = letter;
  }
  return out;
}

std::string capitalized(std::string_view text) {
  std::string out = lower(text);
  if (!out.empty()) out[0] = up(out[0]);
  return out;
}

}  // namespace mc::model::jinja
