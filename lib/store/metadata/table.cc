#include "store/metadata/table.h"

#include <cstring>

#include "base/hash.h"
#include "base/random.h"

namespace mc::store {

Table::Table() {
  buckets_.push_back(std::make_unique<Id[]>(kBuckets));
  std::fill_n(buckets_[0].get(), kBuckets, kNoId);
}

Table::~Table() {
  for (size_t b = 0; b < low_ + next_split_; ++b)
    for (Id id = bucket(b); id != kNoId; id = slab_[id].chain)
      std::unique_ptr<char[]>(slab_[id].key_data).reset();
}

const Object* Table::find(uint16_t tenant, std::string_view key) const {
  const uint32_t hash = hash_of(tenant, key);
  for (Id id = bucket(bucket_of(hash)); id != kNoId; id = slab_[id].chain) {
    const Object& o = slab_[id];
    if (o.hash == hash && o.tenant == tenant && o.key() == key) return &o;
  }
  return nullptr;
}

Object* Table::find(uint16_t tenant, std::string_view key) {
  return const_cast<Object*>(std::as_const(*this).find(tenant, key));
}

Object* Table::at(Id id, Generation generation) {
  Object& object = slab_[id];
  return object.generation == generation ? &object : nullptr;
}

void Table::split() {
  const size_t made = low_ + next_split_;
  if (made / kBuckets == buckets_.size()) {
    buckets_.push_back(std::make_unique<Id[]>(kBuckets));
    std::fill_n(buckets_.back().get(), kBuckets, kNoId);
  }
  Id id = std::exchange(bucket(next_split_), kNoId);
  while (id != kNoId) {
    Object& o = slab_[id];
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

Object& Table::insert(uint16_t tenant, std::string_view key) {
  if (slab_.size() >= low_ + next_split_ && low_ < (size_t{1} << 31)) split();
  const Id id = slab_.take();
  Object& o = slab_[id];
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

void Table::erase(Object& object) {
  unlist(object);
  Id* at = &bucket(bucket_of(object.hash));
  while (*at != object.self) at = &slab_[*at].chain;
  *at = object.chain;
  key_bytes_ -= object.key_bytes;
  std::unique_ptr<char[]>(object.key_data).reset();
  slab_.give(object.self);
}

// A treap priority: other bits than those that choose buckets.
uint32_t Table::priority(const Object& object) {
  return static_cast<uint32_t>(mix64(object.hash + (uint64_t{object.tenant} << 32)) >> 32);
}

void Table::list(Object& object) {
  object.waits = true;
  object.left = kNoId;
  object.right = waiting_;
  if (waiting_ != kNoId) slab_[waiting_].left = object.self;
  waiting_ = object.self;
  ++listed_;
}

void Table::unlist(Object& object) {
  if (!object.waits && !object.ordered) return;
  --listed_;
  if (object.ordered) return unorder(object);
  (object.left == kNoId ? waiting_ : slab_[object.left].right) = object.right;
  if (object.right != kNoId) slab_[object.right].left = object.left;
  object.left = object.right = kNoId;
  object.waits = false;
}

bool Table::sort(size_t most) {
  for (; most > 0 && waiting_ != kNoId; --most) {
    Object& object = slab_[waiting_];
    waiting_ = object.right;
    if (waiting_ != kNoId) slab_[waiting_].left = kNoId;
    object.left = object.right = kNoId;
    object.waits = false;
    order(object);
  }
  return sorted();
}

void Table::order(Object& object) {
  object.ordered = true;
  if (object.tenant >= roots_.size()) roots_.resize(object.tenant + size_t{1}, kNoId);
  Id* at = &roots_[object.tenant];
  const uint32_t mine = priority(object);
  const std::string_view key = object.key();
  while (*at != kNoId && priority(slab_[*at]) >= mine) {
    Object& here = slab_[*at];
    at = key < here.key() ? &here.left : &here.right;
  }
  Id rest = *at;  // split by key into its left and right subtrees
  *at = object.self;
  Id *left = &object.left, *right = &object.right;
  while (rest != kNoId) {
    Object& here = slab_[rest];
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

void Table::unorder(Object& object) {
  object.ordered = false;
  Id* at = &roots_[object.tenant];
  while (*at != kNoId && *at != object.self) {
    Object& here = slab_[*at];
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

const Object* Table::after(uint16_t tenant, std::string_view key, bool inclusive) const {
  if (tenant >= roots_.size()) return nullptr;
  const Object* best = nullptr;
  for (Id at = roots_[tenant]; at != kNoId;) {
    const Object& here = slab_[at];
    if (inclusive ? here.key() >= key : here.key() > key) {
      best = &here;
      at = here.left;
    } else {
      at = here.right;
    }
  }
  return best;
}

uint64_t Table::memory() const {
  return slab_.bytes() + buckets_.size() * kBuckets * sizeof(Id) +
         buckets_.capacity() * sizeof(buckets_[0]) + roots_.capacity() * sizeof(Id);
}

}  // namespace mc::store
