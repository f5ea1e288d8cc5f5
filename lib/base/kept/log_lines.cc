#include "base/kept/log_lines.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

namespace mc {
namespace {

constexpr size_t kKeptMax = 4096;  // lines
constexpr int kWarn = 1;

int new_event() { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); }

struct Kept {
  std::mutex mutex;  // of lines and lost
  std::deque<KeptLine> lines;
  uint64_t lost = 0;
  int event = new_event();  // readable when a taker should look
};
std::atomic<bool> keeps{false};

Kept& kept() {
  static auto* const all = new Kept;  // threads that outlive main's statics may still log
  return *all;
}

void before_fork() { kept().mutex.lock(); }
void after_fork() { kept().mutex.unlock(); }
void in_child() {
  keeps = false;  // nobody takes them there
  ::close(kept().event);
  kept().event = new_event();  // the other one is its parent's
  kept().mutex.unlock();
}

}  // namespace

void keep_log(bool on) {
  static const bool once [[maybe_unused]] =
      ::pthread_atfork(before_fork, after_fork, in_child) == 0;
  const std::lock_guard lock(kept().mutex);
  keeps = on;
  (void)::eventfd_write(kept().event, 1);
}

std::vector<KeptLine> take_kept_log(std::chrono::nanoseconds patience) {
  std::unique_lock lock(kept().mutex);
  eventfd_t count = 0;
  (void)::eventfd_read(kept().event, &count);
  if (kept().lines.empty() && keeps && patience.count() > 0) {
    pollfd event{kept().event, POLLIN, 0};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(patience).count();
    lock.unlock();
    (void)::poll(&event, 1, static_cast<int>(std::min<int64_t>(ms, INT_MAX)));
    lock.lock();
  }
  std::vector<KeptLine> out(kept().lines.begin(), kept().lines.end());
  kept().lines.clear();
  if (const uint64_t lost = std::exchange(kept().lost, 0); lost > 0)
    out.push_back({kWarn, "log", std::to_string(lost) + " lines were lost"});
  return out;
}

bool kept_line(int level, const char* area, const char* text) {
  if (!keeps.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(kept().mutex);
  if (kept().lines.size() < kKeptMax)
    kept().lines.push_back({level, area, text});
  else
    ++kept().lost;
  (void)::eventfd_write(kept().event, 1);
  return true;
}

}  // namespace mc
