// Caches values that this process read, to save network and disk reads. The master still answers
// every read. A cached value counts only if the master has the same generation, size and checksum
// for the object. So the cache never serves a removed or replaced value, and the master leases and
// counts a hit like any read.
//
// A value enters at its second recent read, so a scan does not evict hot values. Eviction is LRU. A
// value larger than an eighth of the cache is not kept.
//
// Thread: any (one mutex, not held while values are copied).
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/units.h"

namespace mc::store {

class LocalHotCache {
 public:
  struct Version {  // of an object, as its master has it
    Generation generation;
    uint64_t bytes = 0, checksum = 0;
    bool operator==(const Version&) const = default;
  };
  using Value = std::shared_ptr<const std::vector<std::byte>>;

  explicit LocalHotCache(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  Value find(const std::string& key, const Version& version);  // null: absent, or another version
  // Whether the caller should insert() the value it just read.
  bool wants(const std::string& key, const Version& version);
  void insert(const std::string& key, const Version& version, Value value);
  void erase(const std::string& key);
  uint64_t bytes() const;
  size_t size() const;

 private:
  static constexpr size_t kSeen = 4096;  // hashes of recently read keys
  struct Entry {
    std::string key;
    Version version;
    Value value;
  };
  void drop(std::list<Entry>::iterator it) MC_REQUIRES(mutex_);

  const uint64_t bytes_max_;
  mutable Mutex mutex_;
  std::list<Entry> entries_ MC_GUARDED_BY(mutex_);  // the most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_ MC_GUARDED_BY(mutex_);
  std::vector<uint64_t> seen_ MC_GUARDED_BY(mutex_) = std::vector<uint64_t>(kSeen);
  uint64_t bytes_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mc::store
