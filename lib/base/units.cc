#include "base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/text.h"

namespace mc {
namespace {

struct Unit {
  const char* name;
  uint64_t scale;
};

constexpr std::array<Unit, 6> kDurations{{{"ns", 1},
                                          {"us", 1'000},
                                          {"ms", 1'000'000},
                                          {"s", 1'000'000'000},
                                          {"m", 60'000'000'000},
                                          {"h", 3'600'000'000'000}}};
constexpr std::array<Unit, 5> kSizes{
    {{"", 1}, {"KiB", kKiB}, {"MiB", kMiB}, {"GiB", kGiB}, {"TiB", 1024 * kGiB}}};

std::pair<const char*, std::errc> fraction(std::string_view text, double& n) {
  auto [end, err] =
      std::from_chars(text.data(), text.data() + text.size(), n, std::chars_format::fixed);
  return {end, err == std::errc() && !(n >= 0) ? std::errc::invalid_argument : err};
}

// A number, possibly with a fraction ("1.5s"), and one of the units; the result must fit i64.
template <size_t N>
Result<uint64_t> parse_scaled(std::string_view text, const std::array<Unit, N>& units,
                              const char* what) {
  constexpr uint64_t kMax = 9'000'000'000'000'000'000;  // leaves room to add a duration to a time
  const char* const last = text.data() + text.size();
  uint64_t whole = 0;
  double n = 0;
  auto [end, err] = std::from_chars(text.data(), last, whole);
  const bool exact = err == std::errc() && (end == last || *end != '.');
  if (!exact) std::tie(end, err) = fraction(text, n);
  const std::string_view suffix(end, static_cast<size_t>(last - end));
  for (const Unit& u : units) {
    if (err != std::errc() || suffix != u.name) continue;
    if (exact && whole <= kMax / u.scale) return whole * u.scale;
    const double scaled = n * static_cast<double>(u.scale);
    if (!exact && n >= 0 && scaled <= static_cast<double>(kMax))
      return static_cast<uint64_t>(std::llround(scaled));
    return fail(Code::kInvalid, "'%s' is too large a %s", escape(text).c_str(), what);
  }
  std::string want;
  for (const Unit& u : units)
    if (*u.name) want += std::string(want.empty() ? "" : ", ") + u.name;
  return fail(Code::kInvalid, "'%s' is not a %s: want a number and a unit (%s)",
              escape(text).c_str(), what, want.c_str());
}

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
  bool valid = false;
};

// The first of `text`. RFC 3629: no overlong forms, no surrogates.
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return {};
  return {code, bytes, true};
}

// Ends a line, commands a terminal, or turns the direction of what follows.
bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 ||
         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

template <size_t N>
std::string exact_text(uint64_t n, const std::array<Unit, N>& units) {
  for (size_t i = N; i-- > 0;)
    if (n != 0 && n % units[i].scale == 0)
      return std::to_string(n / units[i].scale) + units[i].name;
  return "0" + std::string(units[0].name);
}

}  // namespace

Result<> check_node_id(std::string_view id) {
  if (id.empty() || id.size() > kNodeIdBytesMax)
    return fail(Code::kInvalid, "node name of %zu bytes: want 1 to %zu", id.size(),
                kNodeIdBytesMax);
  if (!std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 127; }))
    return fail(Code::kInvalid, "node name '%s': want printable ASCII without spaces",
                escape(id).c_str());
  return {};
}

Result<> check_object_key(std::string_view key) {
  if (key.empty() || key.size() > kObjectKeyBytesMax)
    return fail(Code::kInvalid, "key of %zu bytes: want 1 to %zu", key.size(), kObjectKeyBytesMax);
  if (key.find('\0') != std::string_view::npos)
    return fail(Code::kInvalid, "key '%s' holds a NUL byte", escape(key).c_str());
  return {};
}

std::string escape(std::string_view bytes) {
  std::string out;
  for (char c : bytes.substr(0, 80)) {
    if (c >= ' ' && c < 127)
      out += c;
    else
      out += strf("\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return bytes.size() > 80 ? out + "..." : out;
}

std::string one_line(std::string_view text, size_t most) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const Character c = first_character(text.substr(at));
    const bool space = c.valid && (c.code == '\n' || c.code == '\r' || c.code == '\t');
    const bool kept = c.valid && !is_control(c.code);
    const size_t bytes = kept ? c.bytes : 1;
    if (out.size() + bytes > most) break;
    if (kept)
      out += text.substr(at, bytes);
    else
      out += space ? ' ' : '?';
    at += c.bytes;
  }
  if (at < text.size()) out += "... (cut, " + std::to_string(text.size() - at) + " bytes more)";
  return out;
}

Result<Duration> parse_duration(std::string_view text) {
  MC_TRY(const uint64_t n, parse_scaled(text, kDurations, "duration"));
  return Duration(static_cast<Duration::rep>(n));
}

Result<uint64_t> parse_bytes(std::string_view text) { return parse_scaled(text, kSizes, "size"); }

Result<uint64_t> parse_uint(std::string_view text) {
  uint64_t n = 0;
  auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (err != std::errc() || end != text.data() + text.size())
    return fail(Code::kInvalid, "'%s' is not a whole number", escape(text).c_str());
  return n;
}

Result<double> parse_number(std::string_view text) {
  double n = 0;
  auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (err != std::errc() || end != text.data() + text.size() || !std::isfinite(n))
    return fail(Code::kInvalid, "'%s' is not a number", escape(text).c_str());
  return n;
}

std::string to_text(Duration d) {
  return d.count() < 0 ? "-" + to_text(-d)
                       : exact_text(static_cast<uint64_t>(d.count()), kDurations);
}

std::string rounded_text(Duration d) {
  if (d.count() < 0) return "-" + rounded_text(-d);
  constexpr double kRoundsUp = 999.5;  // to the next unit of a thousand
  const auto ns = static_cast<double>(d.count());
  size_t i = 0;
  while (i + 1 < kDurations.size() &&
         (ns >= static_cast<double>(kDurations[i + 1].scale) ||
          (i < 3 && ns / static_cast<double>(kDurations[i].scale) >= kRoundsUp)))
    ++i;
  const double n = ns / static_cast<double>(kDurations[i].scale);
  std::string digits = strf("%.*f", n < 10 ? 2 : n < 100 ? 1 : 0, n);
  if (digits.find('.') != std::string::npos) {
    digits.resize(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
  }
  return digits + kDurations[i].name;
}

std::string bytes_text(uint64_t n) { return n == 0 ? "0" : exact_text(n, kSizes); }

std::string number_text(double n) {
  char buffer[32];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, n).ptr;
  return {buffer, end};
}

std::string rounded_bytes_text(uint64_t n) {
  if (n < kKiB) return strf("%llu B", static_cast<unsigned long long>(n));
  size_t i = 0;
  double v = static_cast<double>(n);
  for (; v >= 1024 && i + 1 < kSizes.size(); ++i) v /= 1024;
  return strf("%.1f %s", v, kSizes[i].name);
}

}  // namespace mc
