#include "base/result.h"

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mc {
namespace {

constexpr std::array<CodeInfo, 12> kCodes{{
    {Code::kInvalid, "invalid", 2, 400},
    {Code::kNotFound, "not-found", 1, 404},
    {Code::kExists, "exists", 1, 409},
    {Code::kNoSpace, "no-space", 1, 507},
    {Code::kBusy, "busy", 1, 429},
    {Code::kTimeout, "timeout", 3, 504},
    {Code::kUnavailable, "unavailable", 3, 503},
    {Code::kStale, "stale", 1, 409},
    {Code::kCorrupt, "corrupt", 4, 500},
    {Code::kDenied, "denied", 1, 403},
    {Code::kUnsupported, "unsupported", 1, 501},
    {Code::kInternal, "internal", 1, 500},
}};

std::string vstrf(const char* format, va_list args) {
  va_list again;
  va_copy(again, args);
  char buffer[512];
  const int n = std::vsnprintf(buffer, sizeof buffer, format, args);
  std::string out;
  if (n >= 0 && static_cast<size_t>(n) < sizeof buffer) {
    out.assign(buffer, static_cast<size_t>(n));
  } else if (n >= 0) {
    out.resize(static_cast<size_t>(n) + 1);
    std::vsnprintf(out.data(), out.size(), format, again);
    out.pop_back();
  }
  va_end(again);
  return out;
}

Code code_of_errno(int error) {
  switch (error) {
    case ENOENT: return Code::kNotFound;
    case EEXIST: return Code::kExists;
    case EADDRINUSE: return Code::kUnavailable;
    case EDQUOT:
    case ENOSPC:
    case ENOMEM:
    case EMFILE: return Code::kNoSpace;
    case EROFS:
    case EACCES:
    case EPERM: return Code::kDenied;
    case EINVAL: return Code::kInvalid;
    case ETIMEDOUT: return Code::kTimeout;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE: return Code::kUnavailable;
    default: return Code::kInternal;
  }
}

}  // namespace

const CodeInfo& code_info(Code code) {
  const auto index = static_cast<size_t>(code) - 1;
  return kCodes[index < kCodes.size() ? index : kCodes.size() - 1];
}

Code code_from_wire(uint64_t number) {
  return number >= 1 && number <= kCodes.size() ? kCodes[number - 1].code : Code::kInternal;
}

Failure fail(Code code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  Error error{code, vstrf(format, args)};
  va_end(args);
  return Failure(std::move(error));
}

Failure fail_errno(const char* format, ...) {
  const int saved = errno;
  va_list args;
  va_start(args, format);
  Error error{code_of_errno(saved), vstrf(format, args)};
  va_end(args);
  error.what += std::string(": ") + std::strerror(saved);
  return Failure(std::move(error));
}

std::string strf(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string out = vstrf(format, args);
  va_end(args);
  return out;
}

void check_failed(const char* expr, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, expr);
  std::abort();
}

}  // namespace mc
