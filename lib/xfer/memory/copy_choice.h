// Chooses how to copy from what was measured of a machine, and writes the choice down. Which kind
// is the fastest differs between CPUs by a factor of three, and on one CPU with the size, with
// whether a cache holds the destination, and with how source and destination lie in a cache line.
//
// Pure: the caller measures, and has the clock and the file.
// Errors: kCorrupt.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "xfer/memory/copy.h"

namespace mc::xfer {

struct CopyCase {
  bool large = false;   // at least kLargeCopy
  bool cold = false;    // no cache holds the destination
  bool skewed = false;  // the ends lie differently in a cache line
  size_t index() const { return (large ? 4u : 0u) + (cold ? 2u : 0u) + (skewed ? 1u : 0u); }
  static constexpr size_t kCount = 8;
  static CopyCase of(size_t index) {
    return {(index & 4) != 0, (index & 2) != 0, (index & 1) != 0};
  }
};
inline constexpr uint64_t kLargeCopy = 1u << 20;

struct CopyChoice {
  std::array<CopyKind, CopyCase::kCount> kinds{};
  CopyKind of(const CopyCase& c) const { return kinds[c.index()]; }
  bool operator==(const CopyChoice&) const = default;
};

// What is used until a machine was measured: non-temporal stores if no cache holds the destination.
CopyChoice default_copies();

// Measures every kind in every case, in rounds, while `go_on()`. `seconds`: of one copy of that
// kind. The least time of a kind counts, because another process can only make a copy slower. Keeps
// the default where fewer than two rounds were measured, or where no kind is 3 % faster.
CopyChoice choose_copies(const std::function<double(CopyKind kind, const CopyCase& of)>& seconds,
                         const std::function<bool()>& go_on);

// As text with a checksum; `host` identifies the machine and its boot. parse() is kCorrupt if the
// text is damaged or of another host.
std::string print_copies(const CopyChoice& choice, const std::string& host);
Result<CopyChoice> parse_copies(const std::string& text, const std::string& host);

}  // namespace mc::xfer
