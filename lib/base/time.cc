#include "base/time.h"

#include <ctime>

#include "base/result.h"

namespace mc {

Time SteadyClock::coarse_now() const {
  timespec ts{};  // the same timeline as steady_clock, at the last tick
  clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return Time(std::chrono::seconds(ts.tv_sec) + Duration(ts.tv_nsec));
}

int64_t wall_now_ns() {
  timespec ts{};
  clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<int64_t>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

std::string wall_text(int64_t ns) {
  const time_t seconds = static_cast<time_t>(ns / 1'000'000'000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  char buffer[32];
  strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%S", &parts);
  return strf("%s.%03dZ", buffer, static_cast<int>(ns / 1'000'000 % 1000));
}

}  // namespace mc
