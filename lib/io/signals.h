// SIGTERM, SIGINT and SIGHUP as events of a loop. Construct it in main before any thread starts:
// the signals are blocked in this thread and all it creates, and read through a signalfd.
//
// Thread: the loop's.
#pragma once
#include <functional>

#include "io/loop.h"

namespace mc::io {

class Signals {
 public:
  // `stop(n)` is called for each SIGTERM or SIGINT; n counts them from 1. `reread()`, where there
  // is one, for each SIGHUP, which else ends the process. SIGPIPE is ignored.
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
