// Gives quantities their own types, and parses and prints them. Sizes read "64KiB", durations
// "250us". A bare number is an error for a duration and means bytes for a size.
//
// Thread: values; any thread.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"

namespace mc {

// Converts to a plain number implicitly, and from one only explicitly.
template <class Tag>
struct Count {
  uint64_t n = 0;
  constexpr Count() = default;
  constexpr explicit Count(uint64_t count) : n(count) {}
  constexpr operator uint64_t() const { return n; }
};
using Bytes = Count<struct BytesTag>;
using Tokens = Count<struct TokensTag>;

// Grows with each replacement of what it guards: a restart, a re-registration, a new allocation.
// Larger is newer; 0 is "none".
struct Generation {
  uint64_t n = 0;
  constexpr explicit operator bool() const { return n != 0; }
  friend constexpr auto operator<=>(Generation, Generation) = default;
};

using NodeId = std::string;     // 1..255 printable bytes, unique in a cluster
using ObjectKey = std::string;  // 1..1024 bytes, any but NUL
inline constexpr size_t kNodeIdBytesMax = 255;
inline constexpr size_t kObjectKeyBytesMax = 1024;
Result<> check_node_id(std::string_view id);
Result<> check_object_key(std::string_view key);
std::string escape(std::string_view bytes);  // for messages: non-printable bytes as \xNN, cut at 80

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

Result<Duration> parse_duration(std::string_view text);  // "10ms", "5s", "250us", "1m", "2h"
Result<uint64_t> parse_bytes(std::string_view text);     // "4096", "4KiB", "1GiB"
Result<uint64_t> parse_uint(std::string_view text);      // "42"
Result<double> parse_number(std::string_view text);      // "0.95"
std::string to_text(Duration d);                         // "10ms": the largest exact unit
std::string bytes_text(uint64_t n);                      // "4KiB": the largest exact unit
std::string number_text(double n);                       // shortest that reads back the same
std::string rounded_bytes_text(uint64_t n);              // "1.4 GiB": for people, rounded

}  // namespace mc
