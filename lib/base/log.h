// Writes log lines for operators to stderr: one line each, lowercase, area first.
//
//   log_warn("xfer", "rail %s down after %s: %s", ...);
//
// The code that handles an error logs it once; code that returns it does not. Nothing is logged per
// slice: the data path counts into metrics. The implementation is spdlog.
//
// Thread: any.
#pragma once
#include <string>

#include "base/result.h"

namespace mc {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

// level: "error", "warn", "info", "debug"; format: "text" or "json" (one object a line).
Result<> set_up_logs(const std::string& program, const std::string& level,
                     const std::string& format);
bool logs(LogLevel level);  // would a line of this level be written?

[[gnu::format(printf, 2, 3)]] void log_error(const char* area, const char* format, ...);
[[gnu::format(printf, 2, 3)]] void log_warn(const char* area, const char* format, ...);
[[gnu::format(printf, 2, 3)]] void log_info(const char* area, const char* format, ...);
[[gnu::format(printf, 2, 3)]] void log_debug(const char* area, const char* format, ...);

}  // namespace mc
