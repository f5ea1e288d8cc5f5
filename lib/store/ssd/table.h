// The sharded index of the backends that store objects separately. Shards keep readers from waiting
// for each other; each is in order of eviction. An entry that is being read stays until its readers
// are done.
//
// Thread: any.
// Source: ssd-offload-design, "OffsetAllocatorStorageBackend" (1024 metadata shards).
#pragma once
#include <array>
#include <atomic>
#include <list>
#include <set>
#include <unordered_map>

#include "base/mutex.h"
#include "store/ssd/backend.h"

namespace mc::store::ssd {

class Table {
 public:
  struct Entry {
    Stored object;
    uint64_t at = 0;     // private to the backend
    uint64_t order = 0;  // insertion order
   private:
    friend class Table;
    Time last_read{};
    bool read = false, retired = false;
    uint32_t readers = 0;
    std::list<Entry*>::iterator in_order;
  };
  using EntryPtr = std::shared_ptr<Entry>;

  Table();
  // Returns: the entry that is not in the table: the key's previous one, or the new one if it is
  // not newer, or none.
  EntryPtr insert(Stored object, uint64_t at);
  Result<Stored> find(const ObjectKey& key) const;
  EntryPtr take(const ObjectKey& key, Generation generation);  // removes it from the table
  EntryPtr take_victim(Evict policy);
  EntryPtr hold(const Load& load, Time now);  // pins it for a read; nullptr: absent
  // retire() marks a removed entry as free to go; release() ends a read. The last of the two
  // returns true, and its caller frees the space.
  bool retire(const EntryPtr& entry);
  bool release(const EntryPtr& entry);
  std::vector<Stored> objects() const;
  std::vector<EntryPtr> entries() const;
  uint64_t count() const { return count_; }
  uint64_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kShards = 1024;
  struct Shard {
    mutable Mutex mutex;
    std::unordered_map<ObjectKey, EntryPtr> entries MC_GUARDED_BY(mutex);
    std::list<Entry*> unread MC_GUARDED_BY(mutex), read MC_GUARDED_BY(mutex);
    void drop(const EntryPtr& entry) MC_REQUIRES(mutex);
    Entry* first(Evict policy) const MC_REQUIRES(mutex);
  };
  Shard& shard(const ObjectKey& key) const;
  void left(const EntryPtr& entry);
  std::unique_ptr<std::array<Shard, kShards>> shards_;
  std::atomic<uint64_t> count_{0}, bytes_{0}, orders_{0};
};

// Removes victims from the table until `bytes` more fit; `span` returns an entry's space.
// Eviction::rest is a vector of their entries.
Backend::Eviction take_victims(Table& table, Evict policy, uint64_t used, uint64_t bytes,
                               uint64_t capacity, uint64_t (*span)(const Stored&));
// Adds the entries of `left` that have a key of these objects and are not newer: what has left the
// table, and a start would find again.
void append_older(const std::set<Table::EntryPtr>& left, std::span<const Stored> objects,
                  std::vector<Table::EntryPtr>& out);
// The objects of these entries that are in `left`.
std::vector<Stored> objects_among(const std::set<Table::EntryPtr>& left,
                                  std::span<const Table::EntryPtr> entries);
// Pins the entries of the loads that the table has, and sets their outcomes to the objects.
std::vector<Table::EntryPtr> hold_all(Table& table, std::span<Load> loads, Time now);

}  // namespace mc::store::ssd
