// Runs reads and writes through an io_uring. prepare() queues an operation; run() hands all of them
// to the kernel and collects completions. At most `depth` operations are in flight. The kernel owns
// an operation's memory and descriptor until run() returns its completion.
//
// Errors: kUnsupported where the kernel refuses io_uring (sysctl, seccomp, too old): use pread.
// Thread: one at a time; the ring may move to another thread only if it was not opened for one.
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
    unsigned depth = 32;      // operations in flight, 1 to 4096
    bool one_thread = false;  // only the opening thread will use it: saves interrupts
  };
  struct Operation {
    bool write = false;
    int fd = -1;
    std::byte* data = nullptr;
    uint32_t bytes = 0;
    uint64_t offset = 0;  // in the file
    uint64_t tag = 0;     // returned with the completion
    int fixed = -1;       // the registered buffer that `data` lies in
  };
  struct End {
    uint64_t tag = 0;
    int32_t result = 0;  // bytes moved, or a negative errno
  };

  // Whether this kernel lets this process use io_uring; checked once.
  static bool available();
  static Result<std::unique_ptr<Uring>> open(const Config& config);
  ~Uring();  // waits for what is in flight
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // Registers memory, so that the kernel need not look up its pages for each operation. Once a
  // ring. Errors: kNoSpace when the process may not lock as much.
  Result<> register_buffers(std::span<const iovec> buffers);
  unsigned under_way() const;
  bool full() const;
  void prepare(const Operation& operation);  // not when full
  // Submits what was prepared, waits up to `wait` for one completion, and collects all there are.
  // Returns: how many it wrote to `ends`; 0 when the time passed or `ends` is empty.
  Result<size_t> run(std::span<End> ends, Duration wait);

 private:
  struct Impl;
  explicit Uring(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mc::io
