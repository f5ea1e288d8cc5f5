// Stores objects on a disk, in one of three layouts. A backend keeps values until they are removed
// or evicted. After a crash at any point it serves every value whose write was acknowledged and
// reports the others. It returns a value only if its bytes match its checksum.
//
// Eviction has two phases, so that the master never names a file that is gone. begin_evict() drops
// objects from the index, the caller tells the master, and commit_evict() frees their space when no
// reader uses it any more.
//
// Errors of writes: kNoSpace (the disk or --ssd-size is full), kDenied (read-only), kUnavailable
// (I/O).
// Thread: objects(), find(), usage() and read() any; all others one thread at a time.
// Source: ssd-offload-design, "Storage Backends" and "Eviction".
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "store/ssd/disk.h"
#include "store/ssd/format.h"

namespace mc::store::ssd {

enum class Evict { kNone, kFifo, kLru };  // lru: first the never read, oldest first

struct BackendOptions {
  std::string kind = "bucket";  // "bucket", "file", "offset"
  Evict evict = Evict::kLru;
  uint64_t capacity = 0;  // bytes on the disk, overhead included
  uint64_t bucket_bytes = 256 * kMiB;
  uint32_t bucket_keys = 500;
  Duration reader_wait = std::chrono::seconds(10);  // how long commit_evict() waits for readers
  uint64_t compact_rate = 32 * kMiB;                // bytes a second that compact() writes
};

struct Save {
  Stored object;
  // Requires: kAlign-aligned memory, readable up to the next multiple of kAlign after object.bytes.
  const std::byte* value = nullptr;
};

struct Load {
  ObjectKey key;
  Generation generation;      // 0: any
  std::span<std::byte> into;  // kAlign-aligned, at least align_up(bytes)
  Result<Stored> outcome = fail(Code::kInternal, "not read");
};

struct Usage {
  uint64_t capacity = 0, used = 0;  // bytes on the disk
  uint64_t waiting = 0;             // part of `used`: evicted objects with readers
  uint64_t objects = 0, object_bytes = 0;
};

struct ScanReport {  // result of the scan at the start
  uint64_t objects = 0;
  uint64_t unfinished = 0;           // interrupted writes, removed
  std::vector<std::string> damaged;  // skipped files and reasons, up to kReportMax
  uint64_t damaged_count = 0;
  void add(std::string what);
};
inline constexpr size_t kReportMax = 100;

class Backend {
 public:
  struct Eviction {
    std::vector<Stored> objects;
    bool enough = true;          // false: nothing more could be evicted
    std::shared_ptr<void> rest;  // private to the backend
  };

  virtual ~Backend() = default;
  virtual uint64_t cost(std::span<const Save> items) const = 0;  // bytes on the disk
  // Phase one: makes space for `bytes` more.
  virtual Eviction begin_evict(uint64_t bytes) = 0;
  // Phase two. Returns: the objects whose deletion failed. They are found no more, but a start may
  // find them again: they are to be removed.
  virtual std::vector<Stored> commit_evict(Eviction eviction) = 0;
  // Gives back space of removed objects that removal left, a bounded part of it, and tries
  // deletions again that failed. To be called about every second.
  virtual void compact() {}
  // Writes all items or none; they are durable when it returns. It replaces older generations of a
  // key and skips items that it has already.
  virtual Result<> write(std::span<const Save> items) = 0;
  // The removal is durable when it returns. It skips keys that it does not have in that generation.
  // After an error the objects are found no more, but a start may find them again, and their space
  // is not given on. Called again with the same objects, it tries again.
  virtual Result<> remove(std::span<const Stored> objects) = 0;
  // Sets every outcome: kNotFound, kNoSpace (`into` is too small), kCorrupt, kUnavailable.
  // Calls `each`, if set, for every load as soon as its outcome is set.
  virtual void read(std::span<Load> loads, const std::function<void(Load&)>& each = {}) = 0;
  virtual Result<Stored> find(const ObjectKey& key) const = 0;
  virtual std::vector<Stored> objects() const = 0;
  virtual Usage usage() const = 0;
};

// Scans the folder, or initializes an empty one. Errors: kInvalid (another backend's folder),
// kUnsupported (a newer version wrote it; nothing is changed), kDenied, kNoSpace.
Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<Disk> disk,
                                              const BackendOptions& options, const Clock& clock,
                                              ScanReport& report);

// The implementations, for open_backend().
Result<std::unique_ptr<Backend>> open_buckets(std::shared_ptr<Disk>, const BackendOptions&,
                                              const Clock&, ScanReport&);
Result<std::unique_ptr<Backend>> open_files(std::shared_ptr<Disk>, const BackendOptions&,
                                            const Clock&, ScanReport&);
Result<std::unique_ptr<Backend>> open_offsets(std::shared_ptr<Disk>, const BackendOptions&,
                                              const Clock&, ScanReport&);

// Returns: the items that are newer than the backend's, each key once.
std::vector<Save> fresh_of(const Backend& backend, std::span<const Save> items);
// Reads the loads whose outcome is an object, each at the position `where` returns, and verifies
// them.
struct Where {
  Disk::FilePtr file;
  uint64_t at = 0;
};
void read_values(Disk& disk, std::span<Load> loads,
                 const std::function<Result<Where>(size_t load)>& where,
                 const std::function<void(Load&)>& each);
// Verifies the bytes against the object's checksum.
Result<> check_value(const Stored& object, const std::byte* value);

}  // namespace mc::store::ssd
