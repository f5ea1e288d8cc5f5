// The master's table of objects: 104 bytes each, plus the key. It is a hash table that grows one
// bucket at a time, so that no call pauses while a large one doubles. Complete objects are also
// ordered by key, for listing and for removing by prefix. Rare attributes are kept apart
// (store/metadata/object.h).
//
// Ordering an object visits some 30 others, half the cost of a put. So sort() orders them when a
// caller needs the order, a bounded number per call. Objects removed before that never pay.
//
// Thread: one owner. Pure.
// Source: Litwin, "Linear hashing" (1980); Seidel and Aragon, "Randomized search trees" (1996): the
// order is a treap whose priorities are hashes of the keys.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/time.h"
#include "base/units.h"
#include "store/metadata/allocator.h"
#include "store/metadata/slab.h"

namespace mc::store {

struct Member;

enum class ObjectState : uint8_t {
  kWriting,    // reserved for a writer
  kRecording,  // put_end came; the nodes have not acknowledged
  kComplete,   // readable
};

// Order of eviction: kEphemeral, then kNormal, then objects with a soft pin. A kContext stays until
// its time to live ends.
enum class ObjectClass : uint8_t { kNormal = 0, kEphemeral = 1, kContext = 2 };
enum class Pin : uint8_t { kNone = 0, kSoft = 1, kHard = 2 };

struct Replica {
  Member* node = nullptr;
  Id range = kNoId;  // the first of its pieces
  Generation generation;
};

struct Object {
  Generation generation;  // of the first replica
  uint64_t bytes = 0, checksum = 0;
  Time until = Time::min();  // the end of its lease; during a put, its start
  char* key_data = nullptr;  // the table's
  Member* node = nullptr;    // the first replica
  Id range = kNoId;
  Id self = kNoId;
  Link queue;                      // the eviction queue; during a put, that of puts by age
  Link leases;                     // by end
  Id left = kNoId, right = kNoId;  // in the order by key; while it waits for sort(), its neighbours
  Id chain = kNoId;                // of its bucket
  uint32_t hash = 0;
  uint16_t key_bytes = 0;
  uint16_t tenant = 0;
  ObjectState state = ObjectState::kWriting;
  ObjectClass cls = ObjectClass::kNormal;
  Pin pin = Pin::kNone;
  bool queued : 1 = false, leased : 1 = false, visited : 1 = false;
  bool more_replicas : 1 = false, extras : 1 = false, promoted : 1 = false;
  bool waits : 1 = false, ordered : 1 = false;  // for, or in, the order by key

  std::string_view key() const { return {key_data, key_bytes}; }
  Id& spare() { return chain; }
};
static_assert(sizeof(Object) <= 112, "the memory of every object there is");

class Table {
 public:
  Table();
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  Object* find(uint16_t tenant, std::string_view key);
  const Object* find(uint16_t tenant, std::string_view key) const;
  // Prefetches the entries of a batch of keys, so that their cache misses overlap. Only a hint.
  // `key` returns an item's key; `more` prefetches other data of an object.
  template <class Items, class Key, class More>
  void warm(uint16_t tenant, const Items& items, const Key& key, const More& more) const;
  Object& insert(uint16_t tenant, std::string_view key);  // the key must be absent
  void erase(Object& object);
  Object& operator[](Id id) { return slab_[id]; }
  const Object& operator[](Id id) const { return slab_[id]; }
  // Null if the id was reused: the object has another generation.
  Object* at(Id id, Generation generation);
  Slab<Object>& slab() { return slab_; }
  size_t size() const { return slab_.size(); }

  void list(Object& object);    // queues it for the tenant's order by key
  void unlist(Object& object);  // no effect if it is not in it
  size_t listed() const { return listed_; }
  // Orders up to `most` waiting objects. Returns: true if none is left, so that after() sees all.
  bool sort(size_t most = SIZE_MAX);
  bool sorted() const { return waiting_ == kNoId; }
  // The first in the order whose key is larger than `key`, or equal if `inclusive`. Requires:
  // sorted().
  const Object* after(uint16_t tenant, std::string_view key, bool inclusive) const;

  uint64_t key_bytes() const { return key_bytes_; }
  uint64_t memory() const;  // keys excluded

 private:
  static constexpr size_t kBuckets = 1024;  // of one chunk
  Id& bucket(size_t n) { return buckets_[n / kBuckets][n % kBuckets]; }
  const Id& bucket(size_t n) const { return buckets_[n / kBuckets][n % kBuckets]; }
  size_t bucket_of(uint32_t hash) const {
    const size_t n = hash & (low_ - 1);
    return n < next_split_ ? hash & (2 * low_ - 1) : n;
  }
  static uint32_t hash_of(uint16_t tenant, std::string_view key) {
    return static_cast<uint32_t>(xxh3(key, tenant));
  }
  void split();
  static uint32_t priority(const Object& object);
  void order(Object& object);
  void unorder(Object& object);

  Slab<Object> slab_;
  std::vector<std::unique_ptr<Id[]>> buckets_;
  size_t low_ = kBuckets;  // buckets before this round of splits: a power of two
  size_t next_split_ = 0;  // the next bucket to split
  std::vector<Id> roots_;  // by tenant
  size_t listed_ = 0;
  Id waiting_ = kNoId;  // the first that waits for sort()
  uint64_t key_bytes_ = 0;
};

template <class Items, class Key, class More>
void Table::warm(uint16_t tenant, const Items& items, const Key& key, const More& more) const {
  constexpr size_t kTogether = 32;  // about as many as a core fetches at a time
  const auto fetch = [](const void* at) { __builtin_prefetch(at); };
  const auto fetch_object = [&](Id id) {
    const auto* at = reinterpret_cast<const char*>(&slab_[id]);
    fetch(at);
    fetch(at + 64);
  };
  for (size_t from = 0; from < items.size(); from += kTogether) {
    const size_t n = std::min(kTogether, items.size() - from);
    std::array<uint32_t, kTogether> hashes;
    std::array<Id, kTogether> ids;
    for (size_t i = 0; i < n; ++i) {
      hashes[i] = hash_of(tenant, key(items[from + i]));
      fetch(&bucket(bucket_of(hashes[i])));
    }
    for (size_t i = 0; i < n; ++i)
      if ((ids[i] = bucket(bucket_of(hashes[i]))) != kNoId) fetch_object(ids[i]);
    for (size_t i = 0; i < n; ++i)
      if (ids[i] != kNoId && slab_[ids[i]].hash != hashes[i]) {
        ids[i] = slab_[ids[i]].chain;  // one further; few are behind that
        if (ids[i] != kNoId) fetch_object(ids[i]);
      }
    for (size_t i = 0; i < n; ++i)
      if (ids[i] != kNoId && slab_[ids[i]].hash == hashes[i]) {
        fetch(slab_[ids[i]].key_data);
        fetch(slab_[ids[i]].key_data + slab_[ids[i]].key_bytes - 1);
        more(slab_[ids[i]]);
      }
  }
}

}  // namespace mc::store
