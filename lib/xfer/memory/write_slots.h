// Table of the writes under way in a buffer that other processes may map. A writer that copies
// under a guard word claims a slot for its range first, then looks at the guard, copies, and gives
// the slot back. An owner that raised the guard finds in the slots who may still be copying. The
// slot of a process that ended is free.
//
// The slots lie in the page behind the buffer, after its first word (registry.h). An empty slot is
// all zero.
// Thread: any, of any process that has the page mapped.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "xfer/core/fence.h"

namespace mc::xfer {

struct WriteSlot {
  alignas(64) std::atomic<uint64_t> process{0};  // who has it: pid, and when it started
  std::atomic<uint64_t> from{0}, to{0};          // of the segment; empty: nothing
};
static_assert(sizeof(WriteSlot) == 64 && std::atomic<uint64_t>::is_always_lock_free);

inline constexpr size_t kWriteSlots = 63, kWriteSlotsAt = 64;  // in their page
static_assert(kWriteSlotsAt + kWriteSlots * sizeof(WriteSlot) == 4096);

// Of the buffer at `data`, whose last page ends at `end`.
inline WriteSlot* write_slots_of(std::byte* data, uint64_t end) {
  return reinterpret_cast<WriteSlot*>(data + end + kWriteSlotsAt);
}

// `slots`: null: nothing is to be claimed.
class WriteClaim {
 public:
  WriteClaim(WriteSlot* slots, uint64_t from, uint64_t bytes) {
    if (slots != nullptr) take(slots, from, from + bytes);
  }
  ~WriteClaim() {
    if (slot_ != nullptr) give_back();
  }
  WriteClaim(const WriteClaim&) = delete;
  WriteClaim& operator=(const WriteClaim&) = delete;
  bool refused() const { return refused_; }  // all slots are taken: do not write

 private:
  void take(WriteSlot* slots, uint64_t from, uint64_t to);
  void give_back();
  WriteSlot* slot_ = nullptr;
  bool refused_ = false;
};

// Clears `done` of the ranges into which a process that lives may still copy. Requires: their guard
// words were raised before.
void check_write_slots(WriteSlot* slots, std::span<FencedRange> ranges);
void free_ended(WriteSlot* slots);  // those of processes that ended

}  // namespace mc::xfer
