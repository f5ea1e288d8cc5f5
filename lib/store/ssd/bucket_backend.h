// The bucket backend's class; open_buckets() of store/ssd/backend.h makes one.
//
// Thread: as Backend; compact() and what changes buckets are the writer's.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "store/ssd/backend.h"

namespace mc::store::ssd {

inline constexpr const char *kBucketSuffix = ".bucket", *kMetaSuffix = ".meta";

struct Bucket {
  uint64_t id = 0;
  uint64_t file_bytes = 0, disk_bytes = 0;  // of .bucket; of both
  std::vector<BucketEntry> entries;
  std::vector<bool> dead;  // by entry
  size_t live = 0;
  uint64_t live_bytes = 0;  // of .bucket, that a rewritten one would have
  Time last_read = Time::min();
  uint32_t readers = 0;
  bool gone = false;    // evicted or removed
  bool leaves = false;  // between the two phases of eviction
  bool zombie = false;  // its last reader deletes it
  bool stays = false;   // it could not be rewritten
  std::string name(const char* suffix) const {
    return strf("%020llu%s", static_cast<unsigned long long>(id), suffix);
  }
};
using BucketPtr = std::shared_ptr<Bucket>;

class BucketBackend final : public Backend {
 public:
  BucketBackend(std::shared_ptr<Disk> disk, const BackendOptions& options, const Clock& clock)
      : disk_(std::move(disk)), options_(options), clock_(clock) {
    usage_.capacity = options.capacity;
  }
  Result<> scan(ScanReport& report);

  uint64_t cost(std::span<const Save> items) const override;
  Eviction begin_evict(uint64_t bytes) override;
  std::vector<Stored> commit_evict(Eviction eviction) override;
  void compact() override;
  Result<> write(std::span<const Save> items) override;
  Result<> remove(std::span<const Stored> objects) override;
  void read(std::span<Load> loads, const std::function<void(Load&)>& each) override;
  Result<Stored> find(const ObjectKey& key) const override;
  std::vector<Stored> objects() const override;
  Usage usage() const override;

 private:
  struct At {
    BucketPtr bucket;
    uint32_t entry = 0;
    const BucketEntry& operator*() const { return bucket->entries[entry]; }
  };
  Result<BucketPtr> load(const std::string& meta);
  void scan_leftovers(const std::vector<std::string>& names, ScanReport& report);
  std::vector<At> adopt(const BucketPtr& bucket);
  Result<BucketPtr> write_bucket(std::span<const Save> items);
  Result<> finish(const Bucket& bucket, Disk::File& file, Result<> written);
  Result<> write_table(const Bucket& bucket);
  BucketPtr sparse() const MC_REQUIRES(mutex_);
  Result<BucketPtr> rewrite(const BucketPtr& old);
  Result<> copy_values(const Bucket& bucket, const std::vector<uint64_t>& sources,
                       const Disk::FilePtr& source, const Disk::FilePtr& target);
  Result<Disk::FilePtr> handle(const BucketPtr& bucket);
  Result<> strike(std::span<const At> dead, std::vector<BucketPtr> touched = {});
  std::vector<BucketPtr> delete_files(const std::vector<BucketPtr>& buckets, Result<>& first);
  void take(const BucketPtr& bucket) MC_REQUIRES(mutex_);
  BucketPtr victim() const MC_REQUIRES(mutex_);
  void unlink(const Bucket& bucket);

  const std::shared_ptr<Disk> disk_;
  const BackendOptions options_;
  const Clock& clock_;
  uint64_t last_id_ = 0;
  std::set<BucketPtr> unclean_;  // a start would find more in their .meta than they have
  Time compact_at_ = Time::min();
  mutable Mutex mutex_;
  Condition left_;  // signalled when a reader of a gone bucket leaves
  std::map<uint64_t, BucketPtr> buckets_ MC_GUARDED_BY(mutex_);
  std::unordered_map<ObjectKey, At> index_ MC_GUARDED_BY(mutex_);
  Usage usage_ MC_GUARDED_BY(mutex_);
  struct Handle {
    Disk::FilePtr file;
    uint64_t used = 0;
  };
  std::unordered_map<uint64_t, Handle> handles_ MC_GUARDED_BY(mutex_);  // by bucket
  uint64_t handle_uses_ MC_GUARDED_BY(mutex_) = 0;
};

// Of the table that ID.meta holds.
uint64_t table_bytes(const std::vector<BucketEntry>& entries);

}  // namespace mc::store::ssd
