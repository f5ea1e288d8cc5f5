// Leases the staging memory from which readers fetch disk values (ClientBuffer). It tracks which
// slots are leased, to whom, and until when. Each slot has its own generation in its guard word. A
// returned slot first gets a newer generation, so a late reader meets that, never another value's
// bytes.
//
// A batch is leased until it is released or its lease ends. This process may use its memory for
// longer (hold and drop); it is free when neither does.
//
// Thread: one owner. Pure: time is an argument; the owner raises the guard words that calls return.
// Source: ssd-offload-design, "ClientBuffer" and "Load"; design, "SSD tier".
#pragma once
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "base/units.h"
#include "store/ssd/extent_allocator.h"

namespace mc::store::ssd {

struct StagingSlot {
  uint64_t at = 0;     // offset in the staging memory
  uint64_t bytes = 0;  // whole pages
  Generation generation;
};

class Staging {
 public:
  // Generations start above `floor`, which must not be below any earlier use of this memory.
  Staging(uint64_t capacity, Duration ttl, uint64_t floor = 0);

  // Allocates a slot per size, as one batch with one user; fails if they do not fit. The owner sets
  // the guard words to the slots' generations before it hands them out.
  struct Batch {
    uint64_t id = 0;
    std::vector<StagingSlot> slots;
  };
  Result<Batch> take(const std::vector<uint64_t>& bytes);
  // The lease lasts until now + ttl.
  void start_lease(uint64_t batch, Time now);
  void hold(uint64_t batch);  // adds a user
  void drop(uint64_t batch);  // removes a user
  // Ends the lease early; no effect if the batch is not leased. Returns: the slots, with the
  // generations to which the caller must first raise their guard words.
  std::vector<StagingSlot> release(uint64_t batch);
  std::vector<StagingSlot> expire(Time now);  // ends expired leases
  Time deadline() const;

  uint64_t capacity() const { return capacity_; }
  uint64_t used() const { return space_.used(); }
  uint64_t largest_free() const { return space_.largest_free(); }
  size_t leased() const { return by_end_.size(); }
  uint64_t expired() const { return expired_; }

 private:
  struct Held {
    std::vector<StagingSlot> slots;
    uint32_t users = 1;
    bool leased = false;
    std::multimap<Time, uint64_t>::iterator end;
  };
  using Batches = std::unordered_map<uint64_t, Held>;
  std::vector<StagingSlot> end_lease(Batches::iterator it);
  void leave(Batches::iterator it);

  const uint64_t capacity_;
  const Duration ttl_;
  ExtentAllocator space_;
  uint64_t next_batch_ = 1, generation_, expired_ = 0;
  Batches batches_;
  std::multimap<Time, uint64_t> by_end_;
};

}  // namespace mc::store::ssd
