// Memory that host code must not touch, reached by a device's own copies. A kind is registered
// with the engine under the prefix of its locations ("cuda" for "cuda:1"). Memory registered at
// such a location travels by copies of the kind: directly where possible, else through host
// staging buffers (xfer/staging/staging_engine.h). GPUs are one kind
// (xfer/memory/device_platform.h).
//
// Thread: any; copies of different ranges may run at the same time. They block.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "xfer/memory/buffer_backend.h"

namespace mc::xfer {

class MemoryKind {
 public:
  virtual ~MemoryKind() = default;
  virtual Result<> to_host(std::byte* host, const std::byte* device, size_t bytes) = 0;
  virtual Result<> from_host(std::byte* device, const std::byte* host, size_t bytes) = 0;
  // As BufferBackend: rows in one go, within a device, between devices, to and from the host.
  virtual bool moves() const { return false; }
  virtual Result<> move(const CopyDescriptor& move);
  // Staging memory for a stream of bytes to or from memory at `base`; null: a plain one.
  virtual std::unique_ptr<StagingStream> staging_stream(std::byte* base);
  // The location of such memory, "cuda:1"; kInvalid: it is none of this kind's, or was freed.
  virtual Result<std::string> locate(std::span<const std::byte> memory);
  // Of the device at a location, "0000:4f:00.0"; "": it has none, or is not known.
  virtual std::string pci(const std::string& location) const;
  virtual Result<device::Memory> allocate(const std::string& location, uint64_t bytes);
  // Makes host memory better for its copies, for as long as the result lives.
  virtual Result<device::Memory> pin(std::span<std::byte> host);
  virtual bool pinned(const std::byte* host, uint64_t bytes) {
    (void)host, (void)bytes;
    return false;
  }
  // For processes of this host to reach it by copies of their own; as device::Device.
  virtual Result<std::string> share(std::span<const std::byte> memory);
  virtual Result<device::Memory> open(const std::string& location, const std::string& handle);
  // The same memory as a dma-buf, so that NICs reach it without a copy.
  virtual Result<DmaBuf> dma_buf(std::byte* device, size_t bytes);
  // As device::Device: NICs have written into the memory at `device`.
  virtual Result<> see_nic_writes(std::byte* device) {
    (void)device;
    return {};
  }
};
using MemoryKindPtr = std::shared_ptr<MemoryKind>;

// A buffer of such memory, from `base` on.
class DeviceBackend : public BufferBackend {
 public:
  // `owner`: what gives the memory back, if the engine is to.
  DeviceBackend(MemoryKindPtr kind, std::byte* base, std::shared_ptr<const void> owner = nullptr)
      : owner_(std::move(owner)), kind_(std::move(kind)), base_(base) {}
  Result<> read(uint64_t at, std::span<std::byte> to) override {
    return kind_->to_host(to.data(), base_ + at, to.size());
  }
  Result<> write(uint64_t at, std::span<const std::byte> from) override {
    return kind_->from_host(base_ + at, from.data(), from.size());
  }
  bool moves() const override { return kind_->moves(); }
  Result<> move(const CopyDescriptor& move) override { return kind_->move(move); }
  bool pinned(const std::byte* host, uint64_t bytes) override { return kind_->pinned(host, bytes); }
  std::unique_ptr<StagingStream> staging_stream() override {
    auto own = kind_->staging_stream(base_);
    return own != nullptr ? std::move(own) : BufferBackend::staging_stream();
  }
  Result<DmaBuf> dma_buf(uint64_t bytes) override { return kind_->dma_buf(base_, bytes); }
  Result<> see_nic_writes() override { return kind_->see_nic_writes(base_); }

 private:
  const std::shared_ptr<const void> owner_;
  const MemoryKindPtr kind_;
  std::byte* const base_;
};

}  // namespace mc::xfer
