// The KV pool of a worker, mapped by another rank. A worker that changes its role has another pool
// from then on: the new one takes the place of the old one, whose memory is given back.
//
// Thread: one owner.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace mc::serve {

class PoolMapping {
 public:
  PoolMapping() = default;
  ~PoolMapping() { unmap(); }
  PoolMapping(const PoolMapping&) = delete;
  PoolMapping& operator=(const PoolMapping&) = delete;
  // Its first byte; null: errno says why.
  std::byte* map(int file, uint64_t bytes) {
    unmap();
    void* const p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) return nullptr;
    mapped_ = {static_cast<std::byte*>(p), bytes};
    return mapped_.data();
  }

 private:
  void unmap() {
    if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
    mapped_ = {};
  }
  std::span<std::byte> mapped_;
};

}  // namespace mc::serve
