// The library's log, for a program that has one of its own.
#include "base/log.h"
#include "base/kept/log_lines.h"
#include "capi/common.h"
#include "capi/mc/transfer.h"

using namespace mc;

static_assert(MC_LOG_ERROR == static_cast<int>(LogLevel::kError) &&
              MC_LOG_DEBUG == static_cast<int>(LogLevel::kDebug));

extern "C" {

void mc_log_keep(int on) { keep_log(on != 0); }

size_t mc_log_take(unsigned timeout_ms, mc_each_line each, void* user) {
  size_t count = 0;
  (void)capi::guarded([&]() -> Result<> {
    MC_TRY_(capi::need(reinterpret_cast<const void*>(each), "each"));
    for (const KeptLine& kept : take_kept_log(std::chrono::milliseconds(timeout_ms))) {
      const mc_log_line line{sizeof line, static_cast<uint32_t>(kept.level), kept.area.c_str(),
                             kept.text.c_str()};
      each(user, &line);
      ++count;
    }
    return {};
  });
  return count;
}

}  // extern "C"
