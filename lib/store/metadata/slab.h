// A slab allocator: small objects of one type, addressed by 32-bit ids. Ids take half the memory of
// pointers. Chunks never move, growth copies nothing, and an empty slab takes no memory. Ids are
// reused. IdList links such objects through ids that they carry.
//
// Thread: one owner. Pure.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"

namespace mc::store {

using Id = uint32_t;
inline constexpr Id kNoId = UINT32_MAX;

// Requires: T has `Id& spare()`, a field that the slab uses while the item is free.
template <class T, size_t kChunkItems = 256>
class Slab {
 public:
  Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  Id take() {  // a fresh T
    if (free_ == kNoId) grow();
    const Id id = free_;
    T& item = (*this)[id];
    free_ = item.spare();
    item = T{};
    ++size_;
    return id;
  }
  void give(Id id) {
    (*this)[id] = T{};
    (*this)[id].spare() = free_;
    free_ = id;
    --size_;
  }
  T& operator[](Id id) { return chunks_[id / kChunkItems][id % kChunkItems]; }
  const T& operator[](Id id) const { return chunks_[id / kChunkItems][id % kChunkItems]; }
  // Frees up to `most` chunks of a large slab that is no longer used. Returns: false if chunks are
  // left.
  bool shed(size_t most) {
    for (; most > 0 && !chunks_.empty(); --most) chunks_.pop_back();
    return chunks_.empty();
  }
  size_t size() const { return size_; }
  size_t ids() const { return chunks_.size() * kChunkItems; }  // those in use are below
  uint64_t bytes() const {                                     // of memory
    return chunks_.size() * kChunkItems * sizeof(T) + chunks_.capacity() * sizeof(chunks_[0]);
  }

 private:
  void grow() {
    const size_t first = chunks_.size() * kChunkItems;
    MC_CHECK(first + kChunkItems < kNoId);
    chunks_.push_back(std::make_unique<T[]>(kChunkItems));
    for (size_t i = kChunkItems; i-- > 0;) {
      chunks_.back()[i].spare() = free_;
      free_ = static_cast<Id>(first + i);
    }
  }

  std::vector<std::unique_ptr<T[]>> chunks_;
  Id free_ = kNoId;
  size_t size_ = 0;
};

struct Link {
  Id prev = kNoId, next = kNoId;
};

// A list through the link that `member` names; an object is in it at most once.
template <class T, Link T::*member>
class IdList {
 public:
  explicit IdList(Slab<T>& slab) : slab_(&slab) {}
  void push_back(Id id) {
    Link& link = (*slab_)[id].*member;
    link = {back_, kNoId};
    (back_ == kNoId ? front_ : ((*slab_)[back_].*member).next) = id;
    back_ = id;
    ++size_;
  }
  void erase(Id id) {
    Link& link = (*slab_)[id].*member;
    (link.prev == kNoId ? front_ : ((*slab_)[link.prev].*member).next) = link.next;
    (link.next == kNoId ? back_ : ((*slab_)[link.next].*member).prev) = link.prev;
    link = {};
    --size_;
  }
  Id front() const { return front_; }
  Id next(Id id) const { return ((*slab_)[id].*member).next; }
  bool empty() const { return front_ == kNoId; }
  size_t size() const { return size_; }

 private:
  Slab<T>* slab_;
  Id front_ = kNoId, back_ = kNoId;
  size_t size_ = 0;
};

}  // namespace mc::store
