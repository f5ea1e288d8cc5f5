// Reads and writes a buffer that host code cannot address: device memory, or a file. A server of
// such a buffer moves its bytes through host staging memory.
//
// Thread: any; calls on different ranges may run at the same time. They block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "device/device.h"

namespace mc::xfer {

// Staging memory between a backend and a network stream: while one slot moves to or from the
// backend, another is sent or received.
//
// Thread: one at a time. The destructor waits for what is in flight.
class StagingStream {
 public:
  static constexpr size_t kSlots = 4;
  virtual ~StagingStream() = default;
  virtual std::span<std::byte> slot(size_t i) = 0;  // aligned to a page; all of the same size
  // Starts to move bytes between the slot, from `from` on, and the backend at `at`. Several may be
  // in flight in a slot. finish() returns their error.
  virtual void start(size_t slot, size_t from, bool write, uint64_t at, size_t bytes) = 0;
  // Waits for what was started in the slot. Returns: its first error.
  virtual Result<> finish(size_t slot) = 0;
};

using DmaBuf = device::Device::DmaBuf;

// Rows between two addresses, and which of the two ends host code must not touch.
struct CopyDescriptor {
  device::Rows rows;
  bool to_device = false, from_device = false;
};

class BufferBackend {
 public:
  virtual ~BufferBackend() = default;
  // `at` counts from the start of the buffer; the range lies inside it.
  virtual Result<> read(uint64_t at, std::span<std::byte> to) = 0;
  virtual Result<> write(uint64_t at, std::span<const std::byte> from) = 0;
  // Rows at addresses that the backend's own copies reach: its own, the host's, another device's.
  // Where moves() does not say so, it cannot; kUnsupported: not between these two.
  virtual bool moves() const { return false; }
  virtual Result<> move(const CopyDescriptor& move);
  // Whether host memory is pinned for such copies: they are several times as quick then.
  virtual bool pinned(const std::byte* host, uint64_t bytes) {
    (void)host, (void)bytes;
    return false;
  }
  // By default a stream without overlap. It must not outlive the backend.
  virtual std::unique_ptr<StagingStream> staging_stream();
  // Of its first `bytes`; kUnsupported where there is none.
  virtual Result<DmaBuf> dma_buf(uint64_t bytes);
  // As device::Device: NICs have written into it.
  virtual Result<> see_nic_writes() { return {}; }
};

}  // namespace mc::xfer
