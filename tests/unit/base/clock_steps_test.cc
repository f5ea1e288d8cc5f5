// Waits, while the wall clock steps. The program's own clock_gettime stands
// before the C library's.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

#include "base/mutex.h"

namespace {
std::atomic<int64_t> step_s{0};
}

extern "C" int clock_gettime(clockid_t clock, timespec* ts) noexcept {
  const int result = static_cast<int>(::syscall(SYS_clock_gettime, clock, ts));
  if (result == 0 && clock == CLOCK_REALTIME) ts->tv_sec += step_s;
  return result;
}

namespace mc {

#ifdef __SANITIZE_THREAD__  // whose build waits by the wall clock
constexpr int64_t kSteps[] = {0};
#else
constexpr int64_t kSteps[] = {-3600, 3600};
#endif

TEST_SUITE("clock steps") {
  // F96: a wait in progress lasted an hour longer, or ended at once.
  TEST_CASE("a wait lasts as long as it was to, wherever the wall clock is") {
    Mutex mutex;
    Condition never;
    const SteadyClock clock;
    for (const int64_t step : kSteps) {
      step_s = step;
      const Time start = clock.now();
      {
        Lock lock(mutex);
        while (clock.now() - start < std::chrono::milliseconds(20) &&
               never.wait_for(mutex, std::chrono::milliseconds(30))) {
        }
      }
      step_s = 0;
      CHECK(clock.now() - start >= std::chrono::milliseconds(20));
      CHECK(clock.now() - start < std::chrono::minutes(5));
    }
  }
}

}  // namespace mc
