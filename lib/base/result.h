// Result<T> holds a value, or an Error: what failed and what to do about it.
//
// Expected failures (a full pool, a lost peer, a bad file) are Results. Broken invariants of our
// own state are MC_CHECK. The one .cc that calls a library catches its exceptions. One table
// (code_info) maps each code to its name, its number on the wire, an exit code and an HTTP status.
//
// Thread: values; any thread.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace mc {

// What the caller can do next, not where it happened: add a code only when a caller must tell it
// apart. The numbers travel on the wire: never renumber.
enum class Code : uint8_t {
  kInvalid = 1,       // the request is wrong: do not retry
  kNotFound = 2,      // no such key, segment, device or file
  kExists = 3,        // already there
  kNoSpace = 4,       // the pool or disk is full: evict, then retry
  kBusy = 5,          // back-pressure: retry later
  kTimeout = 6,       // the deadline passed: the outcome is unknown
  kUnavailable = 7,   // the peer is gone: try another replica
  kStale = 8,         // an older generation or epoch: refetch, then retry
  kCorrupt = 9,       // checksum or format mismatch: drop the data
  kDenied = 10,       // not allowed
  kUnsupported = 11,  // not on this machine or in this build
  kInternal = 12,     // a bug
};

struct CodeInfo {
  Code code;
  const char* name;  // "not-found"
  int exit_code;     // what a command returns: 1 failed, 2 usage, 3 unavailable, 4 integrity
  int http_status;
};
const CodeInfo& code_info(Code code);
inline const char* name(Code code) { return code_info(code).name; }
// The code of a wire number; kInternal for a number this version does not know.
Code code_from_wire(uint64_t number);

struct [[nodiscard]] Error {
  Code code = Code::kInternal;
  std::string what;  // names the thing: "open /dev/shm/mc-0: Permission denied"
};

template <class T = void>
using Result = tl::expected<T, Error>;

using Failure = tl::unexpected<Error>;

// return fail(Code::kNotFound, "no segment '%s'", name.c_str());
[[gnu::format(printf, 2, 3)]] Failure fail(Code code, const char* format, ...);
// The same with errno's text at the end: "open /x: No such file or directory".
[[gnu::format(printf, 1, 2)]] Failure fail_errno(const char* format, ...);
inline Failure fail(Error error) { return Failure(std::move(error)); }

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string strf(const char* format, ...);

// Prints and aborts. In every build: state that broke its invariant must not be served.
[[noreturn]] void check_failed(const char* expr, const char* file, int line);
#define MC_CHECK(expr) ((expr) ? void() : ::mc::check_failed(#expr, __FILE__, __LINE__))

// MC_TRY(auto fd, open_file(path));   declares fd, or returns the error
// MC_TRY_(file.sync());               for Result<void>, or when the value does not matter
// Statements, not expressions: the expression form leaks temporaries inside a brace initializer.
#define MC_CAT2(a, b) a##b
#define MC_CAT(a, b) MC_CAT2(a, b)
#define MC_TRY_IMPL(tmp, decl, expr)                               \
  auto tmp = (expr);                                               \
  if (!tmp.has_value()) return ::mc::fail(std::move(tmp).error()); \
  decl = std::move(*tmp)
#define MC_TRY(decl, ...) MC_TRY_IMPL(MC_CAT(mc_try_, __LINE__), decl, __VA_ARGS__)
#define MC_TRY_(...) \
  if (auto mc_try = (__VA_ARGS__); !mc_try) return ::mc::fail(std::move(mc_try).error())

}  // namespace mc
