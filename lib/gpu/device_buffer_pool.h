// Device memory in pieces that are used again and again, so that a pass allocates nothing.
//
// Thread: any. Errors: those of Device::allocate; when the device is full, what lies unused is
// given back first.
#pragma once
#include <map>
#include <memory>

#include "base/mutex.h"
#include "device/device.h"

namespace mc::gpu {

class DeviceBufferPool {
 public:
  using Buffer = std::shared_ptr<const device::Memory>;
  explicit DeviceBufferPool(device::DevicePtr device)
      : shelf_(std::make_shared<Shelf>(std::move(device))) {}
  // At least so many bytes of the device, or of pinned host memory; taken back with the last copy.
  Result<Buffer> take(uint64_t bytes, bool host = false);

 private:
  struct Shelf {
    explicit Shelf(device::DevicePtr d) : device(std::move(d)) {}
    const device::DevicePtr device;
    Mutex mutex;
    std::multimap<std::pair<bool, uint64_t>, device::Memory> unused MC_GUARDED_BY(mutex);
  };
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace mc::gpu
