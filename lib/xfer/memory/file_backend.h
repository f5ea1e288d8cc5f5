// A file whose first bytes are offered as a buffer. It decides which bytes bypass the page cache,
// and maps I/O errors to codes. Whole pages go by O_DIRECT if their memory is aligned too. Heads,
// tails and odd addresses go through the page cache, in separate pages, so that the two never
// share a page within a request. Where the file system has no O_DIRECT, all bytes go through the
// cache.
//
// Errors: name the path and the offset: kNoSpace, kCorrupt (the file is shorter than what was
// registered), kUnavailable (an I/O error), kDenied.
// Thread: any.
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "io/fd.h"
#include "xfer/core/request.h"
#include "xfer/memory/buffer_backend.h"

namespace mc::xfer {

class FileStreamPool;

class FileStore final : public BufferBackend, public std::enable_shared_from_this<FileStore> {
 public:
  // Of this process: creates the file or lengthens it to `bytes` (space and all) when `writable`.
  // 0: it is there, and all of it is offered.
  static Result<std::shared_ptr<FileStore>> offer(const std::string& path, uint64_t bytes,
                                                  bool writable,
                                                  std::shared_ptr<FileStreamPool> file_streams);
  // Of a peer: the file must be there, at least as long, and the same one (`dev`, `ino`).
  static Result<std::shared_ptr<FileStore>> attach(const std::string& path, uint64_t bytes,
                                                   bool writable, uint64_t dev, uint64_t ino);

  const std::string& path() const { return path_; }  // absolute, without links
  uint64_t bytes() const { return bytes_; }
  uint64_t dev() const { return dev_; }
  uint64_t ino() const { return ino_; }

  // The next operation on n bytes at `at`, for memory at p: it covers the first `bytes` of them.
  struct Step {
    int fd = -1;
    uint32_t bytes = 0;
    bool direct = false;
  };
  Step step(uint64_t at, const std::byte* p, uint64_t n) const;
  static constexpr uint32_t kStepMax = 1u << 20;
  static constexpr uint64_t kPageBytes = 4096;

  // What an operation that gave `result` (bytes, or a negative errno) means: how many bytes moved;
  // 0: do it again.
  Result<uint64_t> judge(Op op, uint64_t at, const Step& step, int64_t result) const;

  Result<> read(uint64_t at, std::span<std::byte> to) override;
  Result<> write(uint64_t at, std::span<const std::byte> from) override;
  std::unique_ptr<StagingStream> staging_stream() override;
  Result<> sync();  // what was written, and what it takes to read it, outlives a power cut

 private:
  FileStore() = default;
  static Result<std::shared_ptr<FileStore>> open(const std::string& path, int flags, uint64_t bytes,
                                                 std::shared_ptr<FileStreamPool> file_streams);
  Result<uint64_t> size() const;
  Result<> lengthen(uint64_t from);
  Result<> pass(Op op, uint64_t at, std::byte* p, uint64_t n) const;

  std::string path_;
  uint64_t bytes_ = 0, dev_ = 0, ino_ = 0;
  uint64_t page_ = kPageBytes;  // direct operations cover whole ones
  uint64_t memory_align_ = 512;
  io::Fd cached_, direct_;
  mutable std::atomic<bool> no_direct_{false};  // the file system refused it
  std::shared_ptr<FileStreamPool> streams_;
};
using FileStorePtr = std::shared_ptr<FileStore>;

}  // namespace mc::xfer
