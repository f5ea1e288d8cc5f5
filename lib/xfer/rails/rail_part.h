// Private types of RailQueue: parts of slices, and the calls to make after unlocking.
//
// Thread: a part belongs to its queue's mutex.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "xfer/rails/rail_queue.h"

namespace mc::xfer {

struct Attempt::Part {
  struct Whole {  // the slice, and what is left of it
    SlicePtr slice;
    size_t parts = 1;
    Error error;  // the first
  };
  std::shared_ptr<Whole> whole;
  std::byte* local = nullptr;
  Piece piece;
  MemoryEnds memory;
  std::vector<AttemptPtr> out;
  RailIndex bound = 0;  // to this rail, where the scheduler binds
  uint64_t avoid = 0;   // rails it failed on
  uint32_t tries = 0;   // that failed
  uint32_t begun = 0;   // attempts
  bool won = false, queued = false, hedging = false, unfenced = false;
  // Of a read behind a guard: bytes of an attempt that did not look at the guard after them may lie
  // over those of one that did, and be of another object. So it is read again, by one attempt.
  bool torn = false, alone = false;
  bool reached = false;  // the peer was, by the attempt that failed last
  bool late = false;     // that one was given up as late: its rail may well work
  Result<> final;        // an error: it ends so, whatever else happens
  Error last;
  Time queued_since{};

  uint64_t bytes() const { return whole->slice->advances_guard ? 8 : piece.total(); }
  const Slice& slice() const { return *whole->slice; }
  bool guarded_read() const {
    return slice().op == Op::kRead && slice().guard.offset != Guard::kNone;
  }
};

struct RailQueue::Outbox {
  std::vector<std::pair<SlicePtr, Result<>>> finished;
  std::vector<std::pair<Recall, AttemptPtr>> recalls;
  void send(Sink& sink);  // without the mutex
};

// With work waiting, how soon to look at the clock again.
inline constexpr Duration kRailTick = std::chrono::milliseconds(5);

inline uint64_t bit(RailIndex rail) { return rail < 64 ? uint64_t{1} << rail : 0; }

}  // namespace mc::xfer
