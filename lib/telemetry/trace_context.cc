#include "telemetry/trace_context.h"

#include <algorithm>
#include <set>

namespace mc::telemetry {
namespace {

constexpr size_t kLength = 55;  // 00-<32>-<16>-<2>
constexpr uint8_t kSampled = 1;
constexpr size_t kStateMax = 8192;  // characters
constexpr size_t kMembersMax = 32;
constexpr size_t kKeyMax = 256, kValueMax = 256;

int hex_digit(char c) {  // of lower case only, as the header wants
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool read_hex(std::string_view text, uint8_t* bytes) {
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = hex_digit(text[i]), low = hex_digit(text[i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i / 2] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

bool is_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

std::string_view without_spaces(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

bool valid_key(std::string_view key) {
  if (key.empty() || key.size() > kKeyMax || !is_alnum(key.front())) return false;
  const auto at = key.find('@');
  return std::all_of(key.begin(), key.end(), [&](const char& c) {
    return is_alnum(c) || c == '_' || c == '-' || c == '*' || c == '/' ||
           (c == '@' && static_cast<size_t>(&c - key.data()) == at && at + 1 < key.size());
  });
}

bool valid_value(std::string_view value) {
  return !value.empty() && value.size() <= kValueMax &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

bool valid_state(std::string_view state) {
  if (state.size() > kStateMax) return false;
  std::set<std::string_view> keys;
  size_t members = 0;
  for (size_t at = 0; at <= state.size();) {
    const size_t comma = std::min(state.find(',', at), state.size());
    const std::string_view member = without_spaces(state.substr(at, comma - at));
    at = comma + 1;
    if (member.empty()) continue;
    const size_t equals = member.find('=');
    if (++members > kMembersMax || equals == std::string_view::npos) return false;
    const std::string_view key = member.substr(0, equals);
    if (!valid_key(key) || !valid_value(member.substr(equals + 1))) return false;
    if (!keys.insert(key).second) return false;
  }
  return members > 0;
}

}  // namespace

std::optional<TraceContext> read_traceparent(std::string_view header, std::string_view state) {
  const std::string_view text = without_spaces(header);
  uint8_t version = 0, flags = 0;
  if (text.size() < kLength || !read_hex(text.substr(0, 2), &version) || version == 0xff)
    return std::nullopt;
  // A later version may have more, after another dash.
  if (text.size() > kLength && (version == 0 || text[kLength] != '-')) return std::nullopt;
  if (text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  TraceContext c;
  if (!read_hex(text.substr(3, 32), c.trace.data()) ||
      !read_hex(text.substr(36, 16), c.span.data()) || !read_hex(text.substr(53, 2), &flags) ||
      !c.valid())
    return std::nullopt;
  c.sampled = (flags & kSampled) != 0;
  if (valid_state(state)) c.state = without_spaces(state);
  return c;
}

std::string traceparent(const TraceContext& c) {
  return "00-" + hex(c.trace.data(), c.trace.size()) + "-" + hex(c.span.data(), c.span.size()) +
         (c.sampled ? "-01" : "-00");
}

std::string to_wire(const TraceContext& c) {
  if (!c.sampled || !c.valid()) return {};
  std::string bytes(c.trace.begin(), c.trace.end());
  return bytes.append(c.span.begin(), c.span.end());
}

std::optional<TraceContext> from_wire(std::string_view bytes) {
  TraceContext c;
  if (bytes.size() != c.trace.size() + c.span.size()) return std::nullopt;
  std::copy_n(bytes.begin(), c.trace.size(), c.trace.begin());
  std::copy_n(bytes.begin() + c.trace.size(), c.span.size(), c.span.begin());
  c.sampled = true;
  if (!c.valid()) return std::nullopt;
  return c;
}

std::string hex(const uint8_t* bytes, size_t n) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * n);
  for (size_t i = 0; i < n; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace mc::telemetry
