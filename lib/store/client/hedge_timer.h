// Decides when a read is late enough to hedge. It keeps recent read times by size class. A read is
// late when it takes longer than 19 of 20 recent ones.
//
// Thread: any (one mutex). Times are arguments.
// Source: Dean and Barroso, "The tail at scale" (2013), hedged requests.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/mutex.h"
#include "base/time.h"

namespace mc::store {

class HedgeTimer {
 public:
  static constexpr size_t kEnough = 20;  // reads of a class before it has an estimate

  void took(uint64_t bytes, Duration time) {
    Lock lock(mutex_);
    Class& c = classes_[class_of(bytes)];
    c.last[c.n++ % kKept] = time;
  }
  // The time after which a read of so many bytes is late; Duration::max() while too few were seen.
  Duration late_after(uint64_t bytes) const {
    Lock lock(mutex_);
    const Class& c = classes_[class_of(bytes)];
    if (c.n < kEnough) return Duration::max();
    auto sorted = c.last;
    const size_t n = std::min<uint64_t>(c.n, kKept);
    const auto end = sorted.begin() + static_cast<ptrdiff_t>(n);
    const auto at = sorted.begin() + static_cast<ptrdiff_t>(n * 19 / 20);
    std::nth_element(sorted.begin(), at, end);
    return std::max(*at, kLeast);
  }

 private:
  static constexpr size_t kKept = 128;
  static constexpr Duration kLeast = std::chrono::milliseconds(1);
  struct Class {
    std::array<Duration, kKept> last{};
    uint64_t n = 0;
  };
  static size_t class_of(uint64_t bytes) {  // each class spans a factor of four, from 4 KiB on
    return std::min<size_t>(static_cast<size_t>(std::bit_width(bytes >> 12) + 1) / 2, 11);
  }
  mutable Mutex mutex_;
  std::array<Class, 12> classes_ MC_GUARDED_BY(mutex_){};
};

}  // namespace mc::store
