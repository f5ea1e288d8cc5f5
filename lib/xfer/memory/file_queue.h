// Keeps several reads and writes of files in flight, over io_uring. Where the kernel refuses
// io_uring, it does them one by one with pread and pwrite. A short result is continued where it
// ended.
//
// Requires: memory and file of a move stay valid until it is collected; the destructor waits for
// those that are left.
// Thread: the one that made it, but for wake().
#pragma once
#include <memory>
#include <vector>

#include "io/uring.h"
#include "xfer/memory/file_backend.h"

namespace mc::xfer {

class FileQueue {
 public:
  struct Config {
    unsigned depth = 32;
    bool uring = true;       // else pread and pwrite
    bool one_thread = true;  // else it may be handed on between threads
  };
  struct Move {
    FileStorePtr file;
    Op op = Op::kRead;
    uint64_t at = 0;
    std::byte* memory = nullptr;
    uint64_t bytes = 0;
    uint64_t tag = 0;
    int fixed = -1;  // the registered buffer that `memory` lies in
  };
  struct Done {
    uint64_t tag = 0;
    Result<> outcome;
  };
  explicit FileQueue(const Config& config);
  ~FileQueue();
  FileQueue(const FileQueue&) = delete;
  FileQueue& operator=(const FileQueue&) = delete;

  bool full() const { return free_.empty(); }
  size_t under_way() const { return slots_.size() - free_.size(); }
  bool register_memory(std::span<const iovec> buffers);  // false: it does without
  // Takes on the first bytes of the move, as many as one operation covers, and says how many. Not
  // when full.
  uint64_t start(Move move);
  // What is done; waits up to `wait` for the first of it, or for wake().
  void collect(std::vector<Done>& done, Duration wait);
  void wake();  // any thread

 private:
  struct Slot {
    Move move;
    FileStore::Step step;
  };
  void prepare(size_t slot);
  void end(std::vector<Done>& done, size_t slot, int32_t result);
  std::unique_ptr<io::Uring> ring_;  // null: the kernel refuses
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
  std::vector<Done> done_;  // at once, without a ring
  io::Fd event_;
  uint64_t woken_ = 0;      // what the ring reads from the event
  bool listening_ = false;  // it is reading
};

}  // namespace mc::xfer
