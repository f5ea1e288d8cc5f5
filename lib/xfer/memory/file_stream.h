// Streams a file through registered io_uring buffers, several steps ahead of the network. Memory:
// kIdleMax sets of 1 MiB are kept for reuse.
//
// Thread: any; each StagingStream one at a time.
#pragma once
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "xfer/memory/file_backend.h"

namespace mc::xfer {

// Lives as long as a StagingStream of it does.
class FileStreamPool : public std::enable_shared_from_this<FileStreamPool> {
 public:
  explicit FileStreamPool(bool uring);  // else pread and pwrite
  ~FileStreamPool();
  std::unique_ptr<StagingStream> take(FileStorePtr file);
  struct Station;  // staging memory and its queue

 private:
  friend class FileStream;
  static constexpr size_t kIdleMax = 8;
  void give(std::unique_ptr<Station> station);
  const bool uring_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Station>> idle_ MC_GUARDED_BY(mutex_);
};

}  // namespace mc::xfer
