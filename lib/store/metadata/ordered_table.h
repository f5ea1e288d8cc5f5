// A hash table of named objects. It grows one bucket at a time, so that no call pauses while a
// large one doubles. Objects are also ordered by key within their tenant, for listing and for
// removing by prefix.
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
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "base/units.h"
#include "store/metadata/slab.h"

namespace mc::store {

// Requires: T has `char* key_data`, `uint16_t key_bytes`, key(), an unsigned `tenant`, `uint32_t
// hash`, `Id self, chain, left, right`, and `waits` and `ordered` as bool: all are the table's.
template <class T>
class OrderedTable {
 public:
  using Tenant = decltype(T::tenant);

  OrderedTable();
  ~OrderedTable();
  OrderedTable(const OrderedTable&) = delete;
  OrderedTable& operator=(const OrderedTable&) = delete;

  T* find(Tenant tenant, std::string_view key);
  const T* find(Tenant tenant, std::string_view key) const;
  // Prefetches the entries of a batch of keys, so that their cache misses overlap. Only a hint.
  // `key` returns an item's key; `more` prefetches other data of an object.
  template <class Items, class Key, class More>
  void warm(Tenant tenant, const Items& items, const Key& key, const More& more) const;
  T& insert(Tenant tenant, std::string_view key);  // the key must be absent
  void erase(T& object);
  T& operator[](Id id) { return slab_[id]; }
  const T& operator[](Id id) const { return slab_[id]; }
  // Null if the id was reused: the object has another generation.
  T* at(Id id, Generation generation);
  Slab<T>& slab() { return slab_; }
  size_t size() const { return slab_.size(); }

  void list(T& object);    // queues it for the tenant's order by key
  void unlist(T& object);  // no effect if it is not in it
  size_t listed() const { return listed_; }
  // Orders up to `most` waiting objects. Returns: true if none is left, so that after() sees all.
  bool sort(size_t most = SIZE_MAX);
  bool sorted() const { return waiting_ == kNoId; }
  // The first in the order whose key is larger than `key`, or equal if `inclusive`. Requires:
  // sorted().
  const T* after(Tenant tenant, std::string_view key, bool inclusive) const;

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
  static uint32_t hash_of(Tenant tenant, std::string_view key) {
    return static_cast<uint32_t>(xxh3(key, tenant));
  }
  void split();
  static uint32_t priority(const T& object);
  void order(T& object);
  void unorder(T& object);

  Slab<T> slab_;
  std::vector<std::unique_ptr<Id[]>> buckets_;
  size_t low_ = kBuckets;  // buckets before this round of splits: a power of two
  size_t next_split_ = 0;  // the next bucket to split
  std::vector<Id> roots_;  // by tenant
  size_t listed_ = 0;
  Id waiting_ = kNoId;  // the first that waits for sort()
  uint64_t key_bytes_ = 0;
};

template <class T>
OrderedTable<T>::OrderedTable() {
  buckets_.push_back(std::make_unique<Id[]>(kBuckets));
  std::fill_n(buckets_[0].get(), kBuckets, kNoId);
}

template <class T>
OrderedTable<T>::~OrderedTable() {
  for (size_t b = 0; b < low_ + next_split_; ++b)
    for (Id id = bucket(b); id != kNoId; id = slab_[id].chain)
      std::unique_ptr<char[]>(slab_[id].key_data).reset();
}

template <class T>
const T* OrderedTable<T>::find(Tenant tenant, std::string_view key) const {
  const uint32_t hash = hash_of(tenant, key);
  for (Id id = bucket(bucket_of(hash)); id != kNoId; id = slab_[id].chain) {
    const T& o = slab_[id];
    if (o.hash == hash && o.tenant == tenant && o.key() == key) return &o;
  }
  return nullptr;
}

template <class T>
T* OrderedTable<T>::find(Tenant tenant, std::string_view key) {
  return const_cast<T*>(std::as_const(*this).find(tenant, key));
}

template <class T>
T* OrderedTable<T>::at(Id id, Generation generation) {
  T& object = slab_[id];
  return object.generation == generation ? &object : nullptr;
}

template <class T>
void OrderedTable<T>::split() {
  const size_t made = low_ + next_split_;
  if (made / kBuckets == buckets_.size()) {
    buckets_.push_back(std::make_unique<Id[]>(kBuckets));
    std::fill_n(buckets_.back().get(), kBuckets, kNoId);
  }
  Id id = std::exchange(bucket(next_split_), kNoId);
  while (id != kNoId) {
    T& o = slab_[id];
    const Id next = o.chain;
    Id& to = bucket(o.hash & low_ ? made : next_split_);
    o.chain = to;
    to = id;
    id = next;
  }
  if (++next_split_ == low_) {
    low_ *= 2;
    next_split_ = 0;
  }
  // Prefetches the buckets of the next splits.
  constexpr size_t kAhead = 4;
  if (next_split_ + kAhead < low_)
    if (const Id soon = bucket(next_split_ + kAhead); soon != kNoId) {
      __builtin_prefetch(&slab_[soon].chain);
    }
}

template <class T>
T& OrderedTable<T>::insert(Tenant tenant, std::string_view key) {
  if (slab_.size() >= low_ + next_split_ && low_ < (size_t{1} << 31)) split();
  const Id id = slab_.take();
  T& o = slab_[id];
  auto copy = std::make_unique_for_overwrite<char[]>(key.size());
  std::memcpy(copy.get(), key.data(), key.size());
  o.key_data = copy.release();
  o.key_bytes = static_cast<uint16_t>(key.size());
  key_bytes_ += key.size();
  o.tenant = tenant;
  o.self = id;
  o.hash = hash_of(tenant, key);
  Id& first = bucket(bucket_of(o.hash));
  o.chain = first;
  first = id;
  return o;
}

template <class T>
void OrderedTable<T>::erase(T& object) {
  unlist(object);
  Id* at = &bucket(bucket_of(object.hash));
  while (*at != object.self) at = &slab_[*at].chain;
  *at = object.chain;
  key_bytes_ -= object.key_bytes;
  std::unique_ptr<char[]>(object.key_data).reset();
  slab_.give(object.self);
}

// A treap priority: other bits than those that choose buckets.
template <class T>
uint32_t OrderedTable<T>::priority(const T& object) {
  return static_cast<uint32_t>(mix64(object.hash + (uint64_t{object.tenant} << 32)) >> 32);
}

template <class T>
void OrderedTable<T>::list(T& object) {
  object.waits = true;
  object.left = kNoId;
  object.right = waiting_;
  if (waiting_ != kNoId) slab_[waiting_].left = object.self;
  waiting_ = object.self;
  ++listed_;
}

template <class T>
void OrderedTable<T>::unlist(T& object) {
  if (!object.waits && !object.ordered) return;
  --listed_;
  if (object.ordered) return unorder(object);
  (object.left == kNoId ? waiting_ : slab_[object.left].right) = object.right;
  if (object.right != kNoId) slab_[object.right].left = object.left;
  object.left = object.right = kNoId;
  object.waits = false;
}

template <class T>
bool OrderedTable<T>::sort(size_t most) {
  for (; most > 0 && waiting_ != kNoId; --most) {
    T& object = slab_[waiting_];
    waiting_ = object.right;
    if (waiting_ != kNoId) slab_[waiting_].left = kNoId;
    object.left = object.right = kNoId;
    object.waits = false;
    order(object);
  }
  return sorted();
}

template <class T>
void OrderedTable<T>::order(T& object) {
  object.ordered = true;
  if (object.tenant >= roots_.size()) roots_.resize(object.tenant + size_t{1}, kNoId);
  Id* at = &roots_[object.tenant];
  const uint32_t mine = priority(object);
  const std::string_view key = object.key();
  while (*at != kNoId && priority(slab_[*at]) >= mine) {
    T& here = slab_[*at];
    at = key < here.key() ? &here.left : &here.right;
  }
  Id rest = *at;  // split by key into its left and right subtrees
  *at = object.self;
  Id *left = &object.left, *right = &object.right;
  while (rest != kNoId) {
    T& here = slab_[rest];
    if (here.key() < key) {
      *left = rest;
      left = &here.right;
      rest = here.right;
    } else {
      *right = rest;
      right = &here.left;
      rest = here.left;
    }
  }
  *left = *right = kNoId;
}

template <class T>
void OrderedTable<T>::unorder(T& object) {
  object.ordered = false;
  Id* at = &roots_[object.tenant];
  while (*at != kNoId && *at != object.self) {
    T& here = slab_[*at];
    at = object.key() < here.key() ? &here.left : &here.right;
  }
  MC_CHECK(*at == object.self);
  Id left = object.left, right = object.right;
  while (left != kNoId && right != kNoId) {
    if (priority(slab_[left]) >= priority(slab_[right])) {
      *at = left;
      at = &slab_[left].right;
      left = *at;
    } else {
      *at = right;
      at = &slab_[right].left;
      right = *at;
    }
  }
  *at = left != kNoId ? left : right;
  object.left = object.right = kNoId;
}

template <class T>
const T* OrderedTable<T>::after(Tenant tenant, std::string_view key, bool inclusive) const {
  if (tenant >= roots_.size()) return nullptr;
  const T* best = nullptr;
  for (Id at = roots_[tenant]; at != kNoId;) {
    const T& here = slab_[at];
    if (inclusive ? here.key() >= key : here.key() > key) {
      best = &here;
      at = here.left;
    } else {
      at = here.right;
    }
  }
  return best;
}

template <class T>
uint64_t OrderedTable<T>::memory() const {
  return slab_.bytes() + buckets_.size() * kBuckets * sizeof(Id) +
         buckets_.capacity() * sizeof(buckets_[0]) + roots_.capacity() * sizeof(Id);
}

template <class T>
template <class Items, class Key, class More>
void OrderedTable<T>::warm(Tenant tenant, const Items& items, const Key& key,
                           const More& more) const {
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
