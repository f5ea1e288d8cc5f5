// Shares one NIC's usage among the processes of one user, in shared memory. The table is a file
// with one slot for each process. It holds hints: a word that makes no sense counts as absent, so
// corruption costs fairness while it lasts, and nothing else.
//
// It is crash-safe without locks. A slot belongs to the process whose id and start time its owner
// word names; it is claimed and released by compare-and-swap. The slot of a dead process is free.
// What a process published expires. The file (16 KiB, mode 0600, named by user, network namespace,
// process namespace and NIC) stays when the last process leaves.
//
// Requires: no use after fork().
// Errors: of open(): kDenied (not ours alone), kCorrupt (another layout), kBusy (all slots taken).
// Thread: publish() one at a time, usage() any.
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
