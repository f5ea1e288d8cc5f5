// The memory of all GPUs (or stand-ins) of one name, "cuda", as the engine copies it. Copies run
// on their own streams, which are kept for reuse; an event marks the end of each. A copy of rows
// is one launch if the other end is pinned or on a device. Each address is validated before use:
// freed memory is an error, not a fault in the driver.
//
// Thread: any.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "xfer/memory/memory_kind.h"

namespace mc::xfer {

class DevicePlatform final : public MemoryKind,
                             public std::enable_shared_from_this<DevicePlatform> {
 public:
  // At least one, in the order of their ordinals. Those that can reach each other do.
  explicit DevicePlatform(std::vector<device::DevicePtr> devices);
  ~DevicePlatform() override;
  const device::Info& first() const { return stations_.front().device->info(); }
  std::vector<device::Info> devices() const;
  Result<> to_host(std::byte* host, const std::byte* device, size_t bytes) override;
  Result<> from_host(std::byte* device, const std::byte* host, size_t bytes) override;
  bool moves() const override { return true; }
  Result<> move(const CopyDescriptor& move) override;
  std::unique_ptr<StagingStream> staging_stream(std::byte* base) override;
  Result<std::string> locate(std::span<const std::byte> memory) override;
  std::string pci(const std::string& location) const override;
  Result<device::Memory> allocate(const std::string& location, uint64_t bytes) override;
  Result<device::Memory> pin(std::span<std::byte> host) override;
  bool pinned(const std::byte* host, uint64_t bytes) override;
  Result<std::string> share(std::span<const std::byte> memory) override;
  Result<device::Memory> open(const std::string& location, const std::string& handle) override;
  Result<DmaBuf> dma_buf(std::byte* device, size_t bytes) override;
  Result<> see_nic_writes(std::byte* device) override;

 private:
  friend class DeviceStream;
  struct Station {  // a device, and its streams and staging memory that nobody uses
    device::DevicePtr device;
    std::vector<std::unique_ptr<device::Stream>> idle{};
    std::vector<device::Memory> staging{};
  };
  class Lease;  // a stream in use
  Result<Lease> lease(size_t station);
  Result<device::Memory> take_staging(size_t station);
  void give_staging(size_t station, device::Memory memory);
  Result<size_t> station_of(const std::byte* address, uint64_t bytes) const;
  Result<size_t> station_at(const std::string& location) const;
  void pinned_range(std::span<std::byte> host, bool add);

  Mutex mutex_;
  std::vector<Station> stations_;  // their idle parts: of the mutex
  std::map<const std::byte*, uint64_t> pinned_ MC_GUARDED_BY(mutex_);  // bytes, by start
};

// The devices behind a word of the command line: "cuda" (all of them), "cuda:1", "stand-in",
// "stand-in:1", and "stand-in:1@0000:4f:00.0" in place of the GPU there. kUnsupported or kNotFound
// say why there is none.
Result<std::shared_ptr<DevicePlatform>> open_device_platform(const std::string& word,
                                                             const Clock& clock);

}  // namespace mc::xfer
