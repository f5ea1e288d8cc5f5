// Work that waits until a test lets it go on.
#pragma once
#include <chrono>

#include "base/mutex.h"

namespace mc::serve {

struct Gate {
  void open() {
    Lock lock(mutex);
    opened = true;
    changed.notify_all();
  }
  bool wait() {  // false: nobody came
    Lock lock(mutex);
    while (!opened)
      if (!changed.wait_for(mutex, std::chrono::seconds(10))) return opened;
    return true;
  }
  Mutex mutex;
  Condition changed;
  bool opened = false;
};

}  // namespace mc::serve
