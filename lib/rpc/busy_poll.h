// Polls shared memory for a short time before a thread sleeps. To wake a thread takes 30 to 60 us,
// longer than most calls take.
//
// Thread: one at a time.
#pragma once
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/time.h"

namespace mc::rpc {

// Tells the CPU that this is a polling loop. The builtin spares every includer <immintrin.h>.
inline void pause_cpu() { __builtin_ia32_pause(); }

// The time to poll before sleeping. Polling takes a CPU from others: after a poll that found
// nothing the next one is half as long, down to none. Each 32nd poll after that has the full
// length, to find out whether polling pays again.
class AdaptiveSpin {
 public:
  explicit AdaptiveSpin(Duration longest) : longest_(longest), now_(longest) {}
  // The length of the poll that begins. Call it once for each poll.
  Duration begin() {
    const bool again = now_.count() == 0 && ++skipped_ % kAgain == 0;
    return again ? longest_ : now_;
  }
  void hit() { now_ = longest_; }
  void missed() { now_ = now_ < kShortest ? Duration(0) : now_ / 2; }

 private:
  static constexpr Duration kShortest = std::chrono::microseconds(2);
  static constexpr uint32_t kAgain = 32;
  const Duration longest_;
  Duration now_;
  uint32_t skipped_ = 0;
};

// Yields the CPU between polls so that the polled peer can run; that costs some 0.3 us when no
// other thread wants it. If `sched_yield` returns late, another process wants the CPU: back off,
// twice as long each time. Polls are short meanwhile: they last no longer than sleeping and waking
// would take, so that they never cost others more than twice as much as a sleep.
class YieldBackoff {
 public:
  // Call it when a poll of `length` begins. It may become longer by 200 us at most while others
  // have the CPU. Returns: how long it may be.
  Duration begin(Duration length, Time now) {
    extension_ = kExtensionMax;
    return now < no_yield_until_ ? std::min(length, kWhileContended) : length;
  }
  // Yields, unless it backs off. Returns: by how much the poll may last longer.
  Duration yield(const Clock& clock) {
    const Time start = clock.now();
    if (start < no_yield_until_) return Duration(0);
    ::sched_yield();
    const Time back = clock.now();
    const Duration away = back - start;
    if (away < kLate) {
      backoff_ = kLeast;
    } else {
      no_yield_until_ = back + backoff_;
      backoff_ = std::min(2 * backoff_, kMost);
    }
    const Duration longer = std::min(away, extension_);
    extension_ -= longer;
    return longer;
  }

 private:
  static constexpr Duration kExtensionMax = std::chrono::microseconds(200);
  static constexpr Duration kWhileContended = std::chrono::microseconds(10);
  static constexpr Duration kLate = std::chrono::microseconds(500);
  static constexpr Duration kLeast = std::chrono::milliseconds(50),
                            kMost = std::chrono::seconds(10);
  Duration extension_{0};
  Time no_yield_until_ = Time::min();
  Duration backoff_ = kLeast;
};

// Polls for an event loop before it sleeps: for a while after the last message, in turns of 15 us
// at most. Between turns the loop serves its other sockets.
class BusyPoller {
 public:
  enum class Outcome : uint8_t { kInput, kPollAgain, kSleep };

  explicit BusyPoller(Duration longest) : spin_(longest) {}
  void restart() { restart_ = true; }  // a message came: the next poll() begins a full time
  // kPollAgain: call it again, after the other sockets. kSleep: the time is over.
  template <class HasInput>
  Outcome poll(const Clock& clock, const HasInput& has_input) {
    if (has_input()) return Outcome::kInput;
    Time now = clock.now();
    if (std::exchange(restart_, false)) {
      awake_until_ = now + backoff_.begin(spin_.begin(), now);
    }
    const Time until = std::min(now + kTurn, awake_until_);
    for (int round = 0; round < kRoundsMax && now < until; ++round) {
      for (int i = 0; i < 16; ++i) {
        if (has_input()) {
          spin_.hit();
          return Outcome::kInput;
        }
        pause_cpu();
      }
      awake_until_ += backoff_.yield(clock);  // the thread that runs now may be about to call
      now = clock.now();
    }
    if (now < awake_until_) return Outcome::kPollAgain;
    spin_.missed();
    return Outcome::kSleep;
  }

 private:
  static constexpr Duration kTurn = std::chrono::microseconds(15);
  static constexpr int kRoundsMax = 256;  // ends a turn even if the clock stands still
  AdaptiveSpin spin_;
  YieldBackoff backoff_;
  Time awake_until_ = Time::min();
  bool restart_ = false;
};

}  // namespace mc::rpc
