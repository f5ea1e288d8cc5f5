// Counts times to live of what lies in the folder of an SSD tier, over starts: it goes on from the
// mark that the process before this one left there.
//
// Thread: seconds() its owner's, also while leave_mark() runs elsewhere; leave_mark() one at a
// time.
#pragma once
#include <memory>

#include "store/node/keep_clock.h"
#include "store/ssd/disk.h"

namespace mc::store {

class FolderClock {
 public:
  // Reads the mark, if there is a sound one, and leaves one. Requires: the folder is a tier's.
  FolderClock(std::shared_ptr<ssd::Disk> disk, HostClock host, Time now);

  KeepClock& seconds() { return seconds_; }
  const KeepClock& seconds() const { return seconds_; }
  // The mark to leave if the wall clock was stepped since the last one: after the machine's next
  // boot a start goes by that clock.
  std::optional<ClockMark> stepped(Time now);
  // For the process after this one. A disk that takes no mark is logged.
  void leave_mark(const ClockMark& mark) const;

 private:
  std::shared_ptr<ssd::Disk> disk_;
  HostClock host_;
  KeepClock seconds_;
};

}  // namespace mc::store
