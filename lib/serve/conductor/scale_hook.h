// Runs the operator's command when the wanted numbers of workers change.
//
// It runs `/bin/sh -c COMMAND` with the number of prefill workers as $1 and of decode workers as
// $2. One command runs at a time; newer numbers replace those that wait. A command that runs longer
// than kLimit is killed.
//
// Thread: one owner.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "base/time.h"

namespace mc::serve {

class ScaleHook {
 public:
  static constexpr Duration kLimit = std::chrono::seconds(30);
  explicit ScaleHook(std::string command) : command_(std::move(command)) {}  // empty: none
  ~ScaleHook();                                                              // kills what runs
  ScaleHook(const ScaleHook&) = delete;
  ScaleHook& operator=(const ScaleHook&) = delete;

  void tell(size_t prefill, size_t decode, Time now);
  void tick(Time now);  // now and then: notices the end of what runs
  bool running() const { return pid_ > 0; }

 private:
  void start(size_t prefill, size_t decode, Time now);
  const std::string command_;
  pid_t pid_ = 0;
  Time since_{};
  std::optional<std::pair<size_t, size_t>> next_;
};

}  // namespace mc::serve
