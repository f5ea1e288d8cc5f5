// Memory that host code must not touch itself: of a device, reached by that device's own copies. A
// kind is told to the engine under the name that its locations begin with ("cuda" for "cuda:1");
// memory registered at such a location then travels through host staging buffers (xfer/relay.h).
//
// Thread: any; copies of different ranges may run at the same time. They block.
#pragma once
#include <cstddef>
#include <memory>

#include "base/result.h"
#include "xfer/backing.h"

namespace mc::xfer {

class MemoryKind {
 public:
  virtual ~MemoryKind() = default;
  virtual Result<> to_host(std::byte* host, const std::byte* device, size_t bytes) = 0;
  virtual Result<> from_host(std::byte* device, const std::byte* host, size_t bytes) = 0;
  // The same memory as a dma-buf, so that NICs reach it without a copy.
  virtual Result<DmaBuf> dma_buf(std::byte* device, size_t bytes) {
    (void)device, (void)bytes;
    return fail(Code::kUnsupported, "this kind of memory has no dma-buf");
  }
};

// A buffer of such memory, from `base` on.
class DeviceBacking final : public Backing {
 public:
  DeviceBacking(std::shared_ptr<MemoryKind> kind, std::byte* base)
      : kind_(std::move(kind)), base_(base) {}
  Result<> read(uint64_t at, std::span<std::byte> to) override {
    return kind_->to_host(to.data(), base_ + at, to.size());
  }
  Result<> write(uint64_t at, std::span<const std::byte> from) override {
    return kind_->from_host(base_ + at, from.data(), from.size());
  }
  Result<DmaBuf> dma_buf(uint64_t bytes) override { return kind_->dma_buf(base_, bytes); }

 private:
  const std::shared_ptr<MemoryKind> kind_;
  std::byte* const base_;
};

}  // namespace mc::xfer
