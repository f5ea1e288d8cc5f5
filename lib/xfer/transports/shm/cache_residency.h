// Guesses whether a copy's destination is in the CPU caches. It is, if less than a window of bytes
// was copied since the last copy to the same place. One rule covers large copies (longer than the
// window, never cached), rotations through large memory, and small buffers used again and again. A
// place without a recent copy counts as cold: streaming is then faster even from a cached source.
//
// The window is a quarter of the last-level cache, because source and destination both pass
// through it, and at most 8 MiB: the crossover measured on CPUs with larger caches. Places are
// evicted when another place takes their slot, which costs one copy at the other speed.
//
// Thread: any (relaxed atomics: a race costs a guess).
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace mc::xfer {

class CacheResidency {
 public:
  explicit CacheResidency(uint64_t window) : window_(static_cast<uint32_t>(window / kUnit)) {}
  static uint64_t window_of_this_cpu();

  // Is there likely a cache that holds `to`? Notes that `bytes` are copied there now.
  bool hot(const std::byte* to, uint64_t bytes) {
    const uint64_t place = reinterpret_cast<uintptr_t>(to) / kUnit;
    const uint64_t copied = advance(bytes) / kUnit;
    auto& slot = slots_[place * 0x9e3779b97f4a7c15 >> (64 - kSlotBits)];
    const uint64_t then = slot.load(std::memory_order_relaxed);
    slot.store(place << 32 | (copied & UINT32_MAX), std::memory_order_relaxed);
    return then >> 32 == (place & UINT32_MAX) &&
           static_cast<uint32_t>(copied) - static_cast<uint32_t>(then) < window_;
  }

  // Do so many bytes leave no cache with what it held?
  bool outgrown_by(uint64_t bytes) const { return bytes / kUnit >= window_; }

 private:
  static constexpr uint64_t kUnit = 4096;  // of places and of the count of bytes
  static constexpr uint64_t kTold = 256 * 1024;
  // Threads tell each other now and then what they copied: the line would go to and fro otherwise.
  uint64_t advance(uint64_t bytes) {
    thread_local uint64_t untold = 0;
    const uint64_t before = copied_.load(std::memory_order_relaxed) + untold;
    untold += bytes;
    if (untold >= kTold) copied_.fetch_add(std::exchange(untold, 0), std::memory_order_relaxed);
    return before;
  }
  static constexpr unsigned kSlotBits = 12;
  const uint32_t window_;
  std::atomic<uint64_t> copied_{0};
  // The place and the count when it was last copied to, 32 bits of each.
  std::array<std::atomic<uint64_t>, 1u << kSlotBits> slots_{};
};

}  // namespace mc::xfer
