// Says on stderr what a command waits for, when that takes longer than a moment.
//
// Thread: the command's; the note has one of its own.
#pragma once
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/time.h"

namespace mc::xfer {

class WaitNote {
 public:
  // From here to its end the command waits for `peer` to answer, for `most` at most. Nothing is
  // said where `shown` is false.
  WaitNote(bool shown, const std::string& peer, Duration most);
  ~WaitNote();
  WaitNote(const WaitNote&) = delete;
  WaitNote& operator=(const WaitNote&) = delete;

 private:
  void run(const std::string& text);

  Mutex mutex_;
  Condition ended_;
  bool over_ MC_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace mc::xfer
