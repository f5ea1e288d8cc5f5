#include "gpu/device_buffer_pool.h"

#include <algorithm>
#include <bit>

namespace mc::gpu {
namespace {
constexpr uint64_t kLeast = 4096, kLarge = 64u << 20;

// Few sizes, so that what was given back fits the next: powers of two, then multiples of kLarge.
uint64_t rounded(uint64_t bytes) {
  if (bytes > kLarge) return (bytes + kLarge - 1) / kLarge * kLarge;
  return std::bit_ceil(std::max(bytes, kLeast));
}
}  // namespace

Result<DeviceBufferPool::Buffer> DeviceBufferPool::take(uint64_t bytes, bool host) {
  const uint64_t size = rounded(bytes);
  device::Memory memory;
  {
    Lock lock(shelf_->mutex);
    if (const auto it = shelf_->unused.find({host, size}); it != shelf_->unused.end()) {
      memory = std::move(it->second);
      shelf_->unused.erase(it);
    }
  }
  const auto allocate = [&] {
    return host ? shelf_->device->allocate_host(size) : shelf_->device->allocate(size);
  };
  if (memory.data() == nullptr) {
    auto fresh = allocate();
    if (!fresh && fresh.error().code == Code::kNoSpace) {
      std::multimap<std::pair<bool, uint64_t>, device::Memory> gone;
      {
        Lock lock(shelf_->mutex);
        gone.swap(shelf_->unused);
      }
      gone.clear();
      fresh = allocate();
    }
    MC_TRY(memory, std::move(fresh));
  }
  return Buffer(new device::Memory(std::move(memory)),
                [shelf = shelf_, host, size](const device::Memory* m) {
                  std::unique_ptr<const device::Memory> mine(m);
                  Lock lock(shelf->mutex);
                  shelf->unused.emplace(std::pair(host, size), *mine);
                });
}

}  // namespace mc::gpu
