#include "device/stand_in_space.h"

#include <sys/mman.h>

#include <iterator>
#include <utility>

#include "base/units.h"

namespace mc::device {
namespace {
constexpr uint64_t kPage = 4096;
constexpr size_t kFreedMax = 256;  // freed addresses that stay reserved
}  // namespace

uint64_t pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::byte* map_memory(uint64_t bytes, int access, int fd) {
  void* p =
      ::mmap(nullptr, bytes, access, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

Area::~Area() {
  if (seen != nullptr) ::munmap(seen, mapped);
}

Result<AreaPtr> AddressSpace::add(int ordinal, io::Fd fd, uint64_t bytes, bool own) {
  auto area = std::make_shared<Area>();
  area->ordinal = ordinal;
  area->bytes = bytes;
  area->mapped = pages(bytes);
  area->own = own;
  area->seen = map_memory(area->mapped, PROT_READ | PROT_WRITE, fd.get());
  area->address = map_memory(area->mapped, PROT_NONE, -1);
  area->fd = std::move(fd);
  if (area->seen == nullptr || area->address == nullptr)
    return fail_errno("map %s of stand-in memory", rounded_bytes_text(bytes).c_str());
  Lock lock(mutex_);
  areas_[area->address] = {area, area->mapped};
  return area;
}

void AddressSpace::free(const AreaPtr& area) {
  Lock lock(mutex_);
  areas_[area->address].area = nullptr;
  freed_.push_back(area->address);
  if (freed_.size() <= kFreedMax) return;
  const auto oldest = areas_.find(freed_.front());
  ::munmap(freed_.front(), oldest->second.mapped);
  areas_.erase(oldest);
  freed_.pop_front();
}

Result<AreaPtr> AddressSpace::find(const std::byte* address, uint64_t bytes) {
  Lock lock(mutex_);
  auto it = areas_.upper_bound(const_cast<std::byte*>(address));
  if (it == areas_.begin()) return AreaPtr();
  const Spot& spot = std::prev(it)->second;
  const auto at = static_cast<uint64_t>(address - std::prev(it)->first);
  if (at >= spot.mapped) return AreaPtr();
  if (spot.area == nullptr)
    return fail(Code::kInvalid, "%p lies in device memory that was freed",
                static_cast<const void*>(address));
  if (at > spot.area->bytes || bytes > spot.area->bytes - at)
    return fail(Code::kInvalid, "%s at %p pass the end of an allocation of %s",
                rounded_bytes_text(bytes).c_str(), static_cast<const void*>(address),
                rounded_bytes_text(spot.area->bytes).c_str());
  return spot.area;
}

}  // namespace mc::device
