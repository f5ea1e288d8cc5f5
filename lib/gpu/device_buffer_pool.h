// A pool of device buffers by size class. A forward pass allocates nothing.
//
// Errors: those of Device::allocate. When the device is full, the pool first frees its unused
// buffers. Thread: any.
#pragma once
#include <compare>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "device/device.h"

namespace mc::gpu {

class DeviceBufferPool {
 public:
  using Buffer = std::shared_ptr<const device::Memory>;
  explicit DeviceBufferPool(device::DevicePtr device)
      : shared_(std::make_shared<Shared>(std::move(device))) {}
  // At least `bytes` of the device, or of pinned host memory. The last copy returns it to the pool.
  Result<Buffer> take(uint64_t bytes, bool host = false);

 private:
  struct SizeClass {
    bool host;
    uint64_t bytes;
    auto operator<=>(const SizeClass&) const = default;
  };
  using Unused = std::multimap<SizeClass, device::Memory>;
  struct Shared {  // outlives the pool while a buffer does
    explicit Shared(device::DevicePtr d) : device(std::move(d)) {}
    const device::DevicePtr device;
    Mutex mutex;
    Unused unused MC_GUARDED_BY(mutex);
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace mc::gpu
