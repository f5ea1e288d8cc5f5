// Time is a value that logic takes as an argument. Only drivers (the event loop, the simulator) own
// a Clock, and only SteadyClock reads the machine's clock.
//
// Thread: values; clocks may be read from any thread unless said otherwise.
#pragma once
#include <chrono>
#include <string>

namespace mc {

using Duration = std::chrono::nanoseconds;
struct Monotonic {
  using rep = Duration::rep;
  using period = Duration::period;
  using duration = Duration;
  using time_point = std::chrono::time_point<Monotonic, Duration>;
  static constexpr bool is_steady = true;
};
using Time = Monotonic::time_point;  // has no epoch: only differences mean anything

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;
  // The time up to some milliseconds ago, for callers that need a cheap reading, not an exact one.
  virtual Time coarse_now() const { return now(); }
};

class SteadyClock final : public Clock {
 public:
  Time now() const override { return Time(std::chrono::steady_clock::now().time_since_epoch()); }
  Time coarse_now() const override;  // unlike now(), does not serialize the CPU
};

class ManualClock final : public Clock {  // tests and the simulator; one thread
 public:
  Time now() const override { return now_; }
  void advance_to(Time t) { now_ = t; }
  void advance(Duration d) { now_ += d; }

 private:
  Time now_{};
};

constexpr Duration from_seconds(double s) { return Duration(static_cast<Duration::rep>(s * 1e9)); }
constexpr double to_seconds(Duration d) { return static_cast<double>(d.count()) * 1e-9; }
constexpr double to_ms(Duration d) { return static_cast<double>(d.count()) * 1e-6; }

// The wall clock, for people and for names that must differ between runs; never for logic.
int64_t wall_now_ns();
std::string wall_text(int64_t ns);  // "2026-01-31T12:00:00.123Z"

}  // namespace mc
