#include "base/log.h"

#include <pthread.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "base/json.h"
#include "base/kept/log_lines.h"

namespace mc {
namespace {

std::atomic<LogLevel> level_now{LogLevel::kInfo};
std::atomic<bool> as_json{false};

std::mutex& console() { return spdlog::details::console_mutex::mutex(); }

// A child of a fork writes logs too: the lock must be free there.
void keep_lock_across_forks() {
  ::pthread_atfork([] { console().lock(); }, [] { console().unlock(); },
                   [] { console().unlock(); });
}

spdlog::logger& logger() {
  // Leaked on purpose: threads that outlive main's statics may still log.
  static auto* instance = [] {
    auto* l = new std::shared_ptr<spdlog::logger>(
        std::make_shared<spdlog::logger>("mc", std::make_shared<spdlog::sinks::stderr_sink_mt>()));
    (*l)->set_pattern("%Y-%m-%dT%H:%M:%S.%e %P %l %v");
    (*l)->set_level(spdlog::level::trace);
    keep_lock_across_forks();
    return l;
  }();
  return **instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kDebug: return spdlog::level::debug;
  }
  return spdlog::level::info;
}

[[gnu::format(printf, 3, 0)]] void write(LogLevel level, const char* area, const char* format,
                                         va_list args) {
  if (!logs(level)) return;
  char buffer[2048];  // longer lines are cut
  std::vsnprintf(buffer, sizeof buffer, format, args);
  if (kept_line(static_cast<int>(level), area, buffer)) return;
  std::string line;
  if (as_json) {
    // spdlog's pattern supplies the frame; the two texts are escaped here.
    line = "\"area\":" + dump_json(Json(area)) + ",\"what\":" + dump_json(Json(buffer)) + "}";
  } else {
    line = std::string(area) + ": " + buffer;
    for (char& c : line)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';  // a peer's text must not add lines
  }
  logger().log(to_spdlog(level), line);
}

}  // namespace

Result<> set_up_logs(const std::string& program, const std::string& level,
                     const std::string& format) {
  constexpr std::array names{"error", "warn", "info", "debug"};
  size_t i = 0;
  while (i < names.size() && level != names[i]) ++i;
  if (i == names.size())
    return fail(Code::kInvalid, "log level '%s' is not error, warn, info or debug", level.c_str());
  if (format != "text" && format != "json")
    return fail(Code::kInvalid, "log format '%s' is not text or json", format.c_str());
  level_now = static_cast<LogLevel>(i);
  as_json = format == "json";
  if (as_json)
    logger().set_pattern("{\"time\":\"%Y-%m-%dT%H:%M:%S.%e\",\"pid\":%P,\"level\":\"%l\",%v");
  else
    logger().set_pattern("%Y-%m-%dT%H:%M:%S.%e " + program + "[%P] %l %v");
  logger().flush_on(spdlog::level::info);
  return {};
}

bool logs(LogLevel level) { return level <= level_now.load(std::memory_order_relaxed); }

#define MC_LOG_FUNCTION(function, level)                     \
  void function(const char* area, const char* format, ...) { \
    va_list args;                                            \
    va_start(args, format);                                  \
    write(level, area, format, args);                        \
    va_end(args);                                            \
  }
MC_LOG_FUNCTION(log_error, LogLevel::kError)
MC_LOG_FUNCTION(log_warn, LogLevel::kWarn)
MC_LOG_FUNCTION(log_info, LogLevel::kInfo)
MC_LOG_FUNCTION(log_debug, LogLevel::kDebug)

}  // namespace mc
