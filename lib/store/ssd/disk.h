// All file operations of the SSD tier. Tests replace it: they count the operations, stop at any
// one, and look at what a crash there leaves behind.
//
// Paths are relative to the tier's folder. Operations use O_DIRECT if offset, length and memory are
// multiples of kAlign. They go through io_uring, with one ring per thread and up to kDepth in
// flight. If the kernel refuses io_uring or the file system O_DIRECT, they work without.
//
// Errors name the path: kNoSpace (the disk is full), kDenied (it is read-only), kNotFound, kExists,
// kCorrupt (the file ends early), kUnavailable (an I/O error).
// Thread: any; a File may be used by several.
// Source: ssd-offload-design, "io_uring File I/O".
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace mc::store::ssd {

inline constexpr uint64_t kAlign = 4096;
inline constexpr unsigned kDepth = 32;
inline uint64_t align_up(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

class Disk {
 public:
  class File {
   public:
    virtual ~File() = default;
    virtual uint64_t bytes() const = 0;  // size when it was opened or created
    virtual Result<> sync() = 0;         // makes its data durable
  };
  using FilePtr = std::shared_ptr<File>;
  struct Part {  // `bytes` at offset `at` of the file, to or from `data`
    FilePtr file;
    uint64_t at = 0;
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  using Ended = std::function<void(size_t part, const Result<>& outcome)>;

  virtual ~Disk() = default;
  virtual Result<FilePtr> open(const std::string& path) = 0;  // an existing file, to read and write
  // Creates a preallocated file. Errors: kExists, kNoSpace.
  virtual Result<FilePtr> create(const std::string& path, uint64_t bytes) = 0;
  // Reads all parts at once. Calls `ended` for each, on this thread, in any order.
  virtual void read(std::span<const Part> parts, const Ended& ended) = 0;
  // Returns: the first error, after all parts ended.
  virtual Result<> write(std::span<const Part> parts) = 0;
  virtual Result<> rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  virtual Result<> remove(const std::string& path) = 0;  // an absent file is no error
  virtual Result<> make_folder(const std::string& path) = 0;
  virtual Result<> sync_folder(const std::string& path) = 0;  // makes its entries durable
  // Names in a folder, sorted; those of folders end in '/'.
  virtual Result<std::vector<std::string>> list(const std::string& path) = 0;
};

// Reads and writes whole metadata files.
Result<std::string> read_all(Disk& disk, const std::string& path, uint64_t bytes_max);
// Atomic: `path` has the old content or the new one. It writes a temporary file, syncs, renames,
// and syncs the folder.
Result<> write_all(Disk& disk, const std::string& folder, const std::string& name,
                   std::string_view content);
inline constexpr const char* kTemporary = ".tmp";

struct DiskOptions {
  bool uring = true;
  bool lock = true;  // refuse a folder that another process uses (kBusy)
};
// Creates the folder if it is absent.
Result<std::shared_ptr<Disk>> open_disk(const std::string& folder, const DiskOptions& options);
// Registers the memory that most reads and writes use, once per thread. It must outlive the disk's
// use.
void use_memory(Disk& disk, std::span<std::byte> memory);

}  // namespace mc::store::ssd
