// Remembers which replicas a client has verified. The first read of a replica from memory of this
// host is verified, of later ones one in kSample.
//
// Bounded: one that was displaced by others is verified again.
// Thread: any.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mc::store {

class VerifiedReads {
 public:
  static constexpr size_t kSlots = 16384;
  static constexpr uint64_t kSample = 64;

  // `replica`: a hash that identifies it.
  bool due(uint64_t replica) {
    return slot(replica).load(std::memory_order_relaxed) != replica ||
           reads_.fetch_add(1, std::memory_order_relaxed) % kSample == 0;
  }
  void verified(uint64_t replica) { slot(replica).store(replica, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t>& slot(uint64_t replica) { return slots_[replica % kSlots]; }
  std::array<std::atomic<uint64_t>, kSlots> slots_{};
  std::atomic<uint64_t> reads_{0};
};

}  // namespace mc::store
