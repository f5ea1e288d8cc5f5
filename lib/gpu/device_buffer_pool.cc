#include "gpu/device_buffer_pool.h"

#include <algorithm>
#include <bit>

namespace mc::gpu {
namespace {
constexpr uint64_t kLeast = 4096, kLarge = 64u << 20;

// Few size classes, so that buffers are reused: powers of two, then multiples of kLarge.
uint64_t rounded(uint64_t bytes) {
  if (bytes > kLarge) return (bytes + kLarge - 1) / kLarge * kLarge;
  return std::bit_ceil(std::max(bytes, kLeast));
}
}  // namespace

Result<DeviceBufferPool::Buffer> DeviceBufferPool::take(uint64_t bytes, bool host) {
  const SizeClass size_class{host, rounded(bytes)};
  device::Memory memory;
  {
    Lock lock(shared_->mutex);
    if (const auto it = shared_->unused.find(size_class); it != shared_->unused.end()) {
      memory = std::move(it->second);
      shared_->unused.erase(it);
    }
  }
  const auto allocate = [&] {
    return host ? shared_->device->allocate_host(size_class.bytes)
                : shared_->device->allocate(size_class.bytes);
  };
  if (memory.data() == nullptr) {
    auto fresh = allocate();
    if (!fresh && fresh.error().code == Code::kNoSpace) {
      Unused freed;
      {
        Lock lock(shared_->mutex);
        freed.swap(shared_->unused);
      }
      freed.clear();
      fresh = allocate();
    }
    MC_TRY(memory, std::move(fresh));
  }
  return Buffer(new device::Memory(std::move(memory)),
                [shared = shared_, size_class](const device::Memory* m) {
                  std::unique_ptr<const device::Memory> mine(m);
                  Lock lock(shared->mutex);
                  shared->unused.emplace(size_class, *mine);
                });
}

}  // namespace mc::gpu
