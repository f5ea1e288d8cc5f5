// Delivers SIGTERM, SIGINT and SIGHUP as events of a loop. It blocks the signals in this thread and
// all threads that it creates, and reads them through a signalfd.
//
// Requires: construction in main before any thread starts.
// Thread: the loop's.
#pragma once
#include <functional>

#include "io/loop.h"

namespace mc::io {

class Signals {
 public:
  // Calls `stop(n)` for each SIGTERM or SIGINT; n counts them from 1. Calls `reread()` for each
  // SIGHUP; without `reread` it is as SIGTERM, but where it was ignored. SIGPIPE is ignored.
  Signals(Loop& loop, std::function<void(int)> stop, std::function<void()> reread = nullptr);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  Loop& loop_;
  Fd fd_;
  Loop::Handle watch_ = 0;
  int count_ = 0;
};

}  // namespace mc::io
