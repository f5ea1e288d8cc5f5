// An io_uring of reads and writes: prepared one by one, handed to the kernel together, their ends
// collected as they come. At most `depth` are under way; memory and descriptors of an operation
// belong to the kernel until its end was collected.
//
// Thread: one at a time; the ring may be handed on only when it was not opened for one thread.
// Errors: kUnsupported where the kernel refuses io_uring (sysctl, seccomp, too old): use pread.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/time.h"

namespace mc::io {

class Uring {
 public:
  struct Config {
    unsigned depth = 32;      // operations under way, 1 to 4096
    bool one_thread = false;  // only the opening thread will use it: saves interrupts
  };
  struct Operation {
    bool write = false;
    int fd = -1;
    std::byte* data = nullptr;
    uint32_t bytes = 0;
    uint64_t offset = 0;  // in the file
    uint64_t tag = 0;     // comes back with the end
    int fixed = -1;       // the registered buffer that `data` lies in
  };
  struct End {
    uint64_t tag = 0;
    int32_t result = 0;  // bytes moved, or a negative errno
  };

  // Does this kernel let this process use io_uring? Asked once.
  static bool available();
  static Result<std::unique_ptr<Uring>> open(const Config& config);
  ~Uring();  // waits for what is under way
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // Memory whose pages stay known to the kernel: saves looking them up for each operation. Once a
  // ring. kNoSpace when the process may not lock as much.
  Result<> register_buffers(std::span<const iovec> buffers);
  unsigned under_way() const;
  bool full() const;
  void prepare(const Operation& operation);  // not when full
  // Hands over what was prepared, waits for up to `wait` until one has ended, collects what has.
  // None: the time passed, or `ends` is empty.
  Result<size_t> run(std::span<End> ends, Duration wait);

 private:
  struct Impl;
  explicit Uring(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mc::io
