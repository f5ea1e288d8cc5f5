#include "base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>

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
