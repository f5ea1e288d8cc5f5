#include "serve/protocol/json_text.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/json.h"
#include "base/units.h"

namespace mc::serve {
namespace {

constexpr size_t kNone = std::string_view::npos;

size_t after_space(std::string_view s, size_t at) {
  while (at < s.size() && (s[at] == ' ' || s[at] == '\n' || s[at] == '\r' || s[at] == '\t')) ++at;
  return at;
}

// The first of these characters from `at` on, or the end: most of a long prompt is none of them,
// and is passed over 16 bytes at a time.
template <char... kWanted>
size_t next_of(std::string_view s, size_t at) {
  using Lanes [[gnu::vector_size(16)]] = char;
  for (; at + sizeof(Lanes) <= s.size(); at += sizeof(Lanes)) {
    Lanes bytes;
    std::memcpy(&bytes, s.data() + at, sizeof bytes);
    const auto found = ((bytes == kWanted) | ...);
    uint64_t halves[2];
    static_assert(sizeof halves == sizeof found);
    std::memcpy(halves, &found, sizeof found);
    if ((halves[0] | halves[1]) != 0) break;
  }
  while (at < s.size() && ((s[at] != kWanted) && ...)) ++at;
  return at;
}

size_t after_string(std::string_view s, size_t at) {
  for (at = next_of<'"', '\\'>(s, at + 1); at < s.size(); at = next_of<'"', '\\'>(s, at + 2))
    if (s[at] == '"') return at + 1;
  return kNone;
}

size_t after_brackets(std::string_view s, size_t at) {
  std::string closers;
  while (at < s.size()) {
    const char c = s[at];
    if (c == '"') {
      at = after_string(s, at);
      if (at == kNone) return kNone;
      continue;
    }
    if (c == '{' || c == '[') closers += c == '{' ? '}' : ']';
    if (closers.size() > kJsonMessage.depth) return kNone;
    if (c == '}' || c == ']') {
      if (closers.back() != c) return kNone;
      closers.pop_back();
      if (closers.empty()) return at + 1;
    }
    at = next_of<'"', '[', ']', '{', '}'>(s, at + 1);
  }
  return kNone;
}

size_t after_value(std::string_view s, size_t at) {
  if (at >= s.size()) return kNone;
  if (s[at] == '"') return after_string(s, at);
  if (s[at] == '{' || s[at] == '[') return after_brackets(s, at);
  const size_t begin = at;
  const auto plain = [](char c) {
    return c > ' ' && std::string_view(",:{}[]\"").find(c) == kNone;
  };
  while (at < s.size() && plain(s[at])) ++at;
  return at == begin ? kNone : at;
}

Failure no_object(size_t at) {
  return fail(Code::kInvalid, "no JSON object: it goes wrong at byte %zu", at);
}

std::optional<std::string> decoded(std::string_view quoted) {
  if (quoted.size() < 2 || quoted.front() != '"') return std::nullopt;
  if (quoted.find('\\') == kNone) return std::string(quoted.substr(1, quoted.size() - 2));
  auto json = parse_json(quoted);
  if (!json || !json->is_string()) return std::nullopt;
  return json->get<std::string>();
}

}  // namespace

Result<JsonText> JsonText::parse(std::string text) {
  JsonText out;
  out.text_ = std::move(text);
  const std::string_view s = out.text_;
  size_t at = after_space(s, 0);
  if (at >= s.size() || s[at] != '{') return no_object(at);
  at = after_space(s, at + 1);
  bool more = at < s.size() && s[at] != '}';
  while (more) {
    Member m;
    m.begin = at;
    if (at >= s.size() || s[at] != '"') return no_object(at);
    const size_t name_end = after_string(s, at);
    if (name_end == kNone) return no_object(at);
    auto name = decoded(s.substr(at, name_end - at));
    at = after_space(s, name_end);
    if (!name || at >= s.size() || s[at] != ':') return no_object(at);
    m.name = std::move(*name);
    m.value = after_space(s, at + 1);
    m.end = after_value(s, m.value);
    if (m.end == kNone) return no_object(m.value);
    if (out.members_.size() >= kJsonMessage.members)
      return fail(Code::kInvalid, "an object has more than %zu members", kJsonMessage.members);
    at = after_space(s, m.end);
    out.members_.push_back(std::move(m));
    more = at < s.size() && s[at] == ',';
    if (more) at = after_space(s, at + 1);
  }
  if (at >= s.size() || s[at] != '}' || after_space(s, at + 1) != s.size()) return no_object(at);
  std::vector<std::string_view> names;
  for (const Member& m : out.members_) names.push_back(m.name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    return fail(Code::kInvalid, "'%s' occurs twice in an object", escape(*twice).c_str());
  return out;
}

std::optional<std::string_view> JsonText::find(std::string_view name) const {
  for (const Member& m : members_) {
    if (m.name != name) continue;
    const auto value = std::string_view(text_).substr(m.value, m.end - m.value);
    return value == "null" ? std::nullopt : std::optional(value);
  }
  return std::nullopt;
}

std::optional<std::string> JsonText::find_string(std::string_view name) const {
  const auto value = find(name);
  return value ? decoded(*value) : std::nullopt;
}

std::string JsonText::with(std::span<const Change> changes) const {
  std::vector<bool> used(changes.size(), false);
  const size_t body = members_.empty() ? text_.rfind('}') : members_.front().begin;
  std::string out = text_.substr(0, body);
  bool first = true;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    const auto change = std::find_if(changes.begin(), changes.end(),
                                     [&](const Change& c) { return c.name == m.name; });
    if (change != changes.end()) used[static_cast<size_t>(change - changes.begin())] = true;
    if (change != changes.end() && !change->value) continue;
    if (!first) {  // its comma, and the spaces around it
      const size_t from = members_[i - 1].end;
      out.append(text_, from, m.begin - from);
    }
    first = false;
    out.append(text_, m.begin, m.value - m.begin);
    if (change != changes.end())
      out += *change->value;
    else
      out.append(text_, m.value, m.end - m.value);
  }
  for (size_t i = 0; i < changes.size(); ++i) {
    if (used[i] || !changes[i].value) continue;
    if (!first) out += ',';
    first = false;
    append_quoted(out, changes[i].name);
    out += ':' + *changes[i].value;
  }
  return out.append(text_, members_.empty() ? body : members_.back().end);
}

namespace {

// The digits at `at`: their value, and how many they are. Eight bytes are read; eight digits and
// more have no value here. The first byte that is no digit ends the number; what it carries into
// those above does not matter. Source: "SIMD within a register", as simdjson and others read
// numbers, by adding up neighbours with multiplications.
struct Digits {
  uint64_t value;
  size_t count;
};
Digits seven_digits(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  word ^= 0x3030303030303030;
  const uint64_t others = ((word + 0x7676767676767676) | word) & 0x8080808080808080;
  const auto count = static_cast<size_t>(std::countr_zero(others)) / 8;
  if (count == 0 || count == 8) return {0, count};
  word <<= 64 - 8 * count;  // zeros before them
  word = word * 10 + (word >> 8);
  word = ((word & 0x000000ff000000ff) * 0x000f424000000064 +
          ((word >> 16) & 0x000000ff000000ff) * 0x0000271000000001) >>
         32;
  return {word, count};
}

}  // namespace

std::optional<std::vector<int32_t>> parse_ids(std::string_view text, uint32_t end) {
  constexpr size_t kDigits = 10;
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 6);
  const char* at = text.data() + 1;
  const char* const last = text.data() + text.size() - 1;
  const auto skip = [&at, last] {
    while (at < last && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) ++at;
  };
  for (skip(); at < last; skip()) {
    const char* const begin = at;
    Digits id{0, 0};
    if (last - at >= 8) id = seven_digits(at);
    if (id.count > 0 && id.count < 8)
      at += id.count;
    else
      while (at < last && *at >= '0' && *at <= '9' && at - begin <= static_cast<ptrdiff_t>(kDigits))
        id.value = id.value * 10 + static_cast<uint64_t>(*at++ - '0');
    const bool padded = *begin == '0' && at - begin > 1;
    if (at == begin || padded || id.value >= end || id.value > INT32_MAX) return std::nullopt;
    ids.push_back(static_cast<int32_t>(id.value));
    skip();
    if (at == last) return ids;
    if (*at++ != ',') return std::nullopt;
  }
  return std::nullopt;  // empty, or a comma at the end
}

}  // namespace mc::serve
