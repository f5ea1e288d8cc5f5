// Stands in for the memory of a device: its address is mapped without access, so host code that
// touches it dies, and only its own copies, through another mapping, reach the bytes.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/mutex.h"
#include "tests/conformance/pair.h"
#include "xfer/memory/memory_kind.h"

namespace mc::xfer {

class StandIn final : public MemoryKind {
 public:
  explicit StandIn(size_t bytes) : bytes_(bytes) {
    const int fd = ::memfd_create("stand-in", MFD_CLOEXEC);
    REQUIRE(::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    address_ = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    shadow_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE((address_ != MAP_FAILED && shadow_ != MAP_FAILED));
    ::close(fd);
  }
  ~StandIn() override {
    ::munmap(address_, bytes_);
    ::munmap(shadow_, bytes_);
  }
  std::span<std::byte> memory() const { return {static_cast<std::byte*>(address_), bytes_}; }
  std::span<std::byte> seen_by_device() const { return {static_cast<std::byte*>(shadow_), bytes_}; }

  Result<> to_host(std::byte* host, const std::byte* device, size_t n) override {
    MC_TRY_(enter());
    std::memcpy(host, shadow(device), n);
    return {};
  }
  Result<> from_host(std::byte* device, const std::byte* host, size_t n) override {
    MC_TRY_(enter());
    std::memcpy(shadow(device), host, n);
    return {};
  }

  size_t copies() const { return copies_.load(); }
  void fail_from(size_t copy) { fails_from_.store(copy); }  // SIZE_MAX: never
  void take(Duration each) { takes_.store(each.count()); }  // how long a copy is
  // Copies wait until so many are under way at once (or a while has passed).
  void gather(size_t n) { gather_.store(n); }
  size_t most_at_once() {
    Lock lock(mutex_);
    return most_;
  }

 private:
  std::byte* shadow(const std::byte* device) const {
    return static_cast<std::byte*>(shadow_) + (device - static_cast<std::byte*>(address_));
  }
  Result<> enter() {
    if (copies_.fetch_add(1) >= fails_from_.load())
      return fail(Code::kInternal, "the device lost a copy");
    Lock lock(mutex_);
    ++inside_;
    most_ = std::max(most_, inside_);
    changed_.notify_all();
    while (most_ < gather_.load() && changed_.wait_for(mutex_, std::chrono::seconds(5))) {
    }
    const Time until = kClock.now() + Duration(takes_.load());
    for (Time now = kClock.now(); now < until; now = kClock.now())
      changed_.wait_for(mutex_, until - now);
    --inside_;
    return {};
  }
  const size_t bytes_;
  void *address_ = nullptr, *shadow_ = nullptr;
  std::atomic<size_t> copies_{0}, fails_from_{SIZE_MAX}, gather_{0};
  std::atomic<Duration::rep> takes_{0};
  Mutex mutex_;
  Condition changed_;
  size_t inside_ MC_GUARDED_BY(mutex_) = 0, most_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mc::xfer
