// What the processes of one user on one machine tell each other about one NIC: a file of slots in
// shared memory, one slot a process. It holds hints, never truth: a word that makes no sense counts
// as absent, so garbage costs fairness for as long as it stands and nothing else.
//
// Crash-safe without locks: a slot belongs to the process whose id and start time its owner word
// names, claimed and given back by compare-and-swap; the slot of a dead process is anyone's. What a
// process told lapses by itself. The file (16 KiB, mode 0600, named by user, network namespace,
// process namespace and NIC) stays when the last process leaves.
//
// Thread: publish() one at a time, usage() any. Do not use it after fork().
// Errors of open(): kDenied (not ours alone), kCorrupt (another layout), kBusy (all slots taken).
#pragma once
#include <memory>
#include <string>

#include "base/result.h"
#include "xfer/qos/fair_share.h"

namespace mc::xfer {

class ShmUsageTable {
 public:
  static constexpr uint32_t kSlots = 128;

  static Result<std::unique_ptr<ShmUsageTable>> open(const std::string& directory,
                                                     const std::string& nic);
  ~ShmUsageTable();
  ShmUsageTable(const ShmUsageTable&) = delete;
  ShmUsageTable& operator=(const ShmUsageTable&) = delete;

  void publish(const NicDemand& demand);
  NicUsage usage(Time now) const;  // of all but this one
  const std::string& path() const { return path_; }

 private:
  struct Slot;
  struct File;
  ShmUsageTable() = default;
  Result<> claim();
  bool owns() const;
  std::string path_;
  File* file_ = nullptr;
  Slot* mine_ = nullptr;
  uint64_t me_ = 0;
};

}  // namespace mc::xfer
