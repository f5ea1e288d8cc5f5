// How an event loop looks for messages in memory before it sleeps: for a while after the last one,
// a few microseconds at a time, so that its other sockets have their turns, and leaving its CPU to
// others between two looks. Who is answered at once is then met awake: to wake a thread takes 30 to
// 60 us, longer than most calls.
//
// Thread: the loop's.
#pragma once
#include <immintrin.h>

#include <algorithm>

#include "rpc/courtesy.h"
#include "rpc/spin.h"

namespace mc::rpc {

class Lookout {
 public:
  enum class Seen : uint8_t { kInput, kNothingYet, kNothing };

  explicit Lookout(Duration longest) : spin_(longest) {}
  void fresh() { fresh_ = true; }  // a message came: from the next look() on time counts anew
  // kNothingYet: look again, after the other sockets. kNothing: the time is over.
  template <class HasInput>
  Seen look(const Clock& clock, const HasInput& has_input) {
    if (has_input()) return Seen::kInput;
    Time now = clock.now();
    if (std::exchange(fresh_, false)) {
      awake_until_ = now + spin_.begin();
      courtesy_.begin();
    }
    const Time until = std::min(now + kLook, awake_until_);
    for (int round = 0; round < kRoundsMax && now < until; ++round) {
      for (int i = 0; i < 16; ++i) {
        if (has_input()) {
          spin_.found();
          return Seen::kInput;
        }
        _mm_pause();
      }
      awake_until_ += courtesy_.offer(clock);  // who has the CPU now may be about to call
      now = clock.now();
    }
    if (now < awake_until_) return Seen::kNothingYet;
    spin_.in_vain();
    return Seen::kNothing;
  }

 private:
  static constexpr Duration kLook = std::chrono::microseconds(15);
  static constexpr int kRoundsMax = 256;  // also by a clock that stands still
  Spin spin_;
  Courtesy courtesy_;
  Time awake_until_ = Time::min();
  bool fresh_ = false;
};

}  // namespace mc::rpc
