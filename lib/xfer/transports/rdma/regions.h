// Registers this process's memory on its RDMA devices. Private to rdma/*.cc. Memory offered to
// peers is registered once on each device while it is offered, and serves as the local end of
// transfers too. Other local memory is registered only during a transfer: after a free() and the
// next mmap(), a kept registration would lead to pages that the process no longer sees.
//
// Thread: any; registration is slow and runs outside the lock that transfers take.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "xfer/memory/registry.h"
#include "xfer/transports/rdma/device.h"

namespace mc::xfer::rdma {

// Memory that a NIC may write to, in place of memory that it may not, such as a file's.
struct Bounce {
  std::unique_ptr<std::byte[]> data;
  uint64_t bytes = 0;
  const Device* device = nullptr;  // that of the region
  RegionPtr region;
};
using BouncePtr = std::shared_ptr<Bounce>;

class Regions {
 public:
  Regions(const Clock& clock, Metrics& metrics, size_t nics);
  void offer(const Buffer& buffer);
  void withdraw(const Buffer& buffer);
  void describe(const Buffer& buffer, BufferInfo& info) const;
  // The device of a NIC from now on: all memory is registered on it. Null: it is gone.
  void use(size_t nic, const DevicePtr& device);
  // Whether a device has this memory, of a GPU, registered by its dma-buf.
  bool takes(const Buffer& buffer) const;
  // Local memory of a transfer: `into`, it is written. Null: it is not registered. kUnsupported: it
  // cannot be.
  Result<RegionPtr> known(size_t nic, const DevicePtr& device, std::byte* at, uint64_t bytes,
                          bool into);
  // Registers such memory.
  Result<RegionPtr> local(const DevicePtr& device, std::byte* at, uint64_t bytes, bool into);
  // At least as long. Given back once nothing moves into it any more.
  Result<BouncePtr> bounce(size_t nic, const DevicePtr& device, uint64_t bytes);
  void give_back(size_t nic, BouncePtr bounce);
  // What peers need on a device: by offset, the key of each buffer.
  void keys(size_t nic, std::vector<uint64_t>* offsets, std::vector<uint32_t>* rkeys) const;
  uint32_t key(size_t nic, uint64_t offset) const;

 private:
  struct Entry {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    bool writable = false;
    std::shared_ptr<BufferBackend> backend;  // null: memory of the host
    MemoryLocation at;
    std::vector<RegionPtr> on;  // by NIC; null: not registered there
  };
  RegionPtr make(const DevicePtr& device, const Entry& entry);
  Result<RegionPtr> of_device(const DevicePtr& device, const Entry& entry, int access);
  Result<RegionPtr> timed(const DevicePtr& device, std::byte* data, uint64_t bytes, int access);

  const Clock& clock_;
  Counter &made_, &found_;
  BucketHistogram& took_;
  Gauge& registered_;
  Mutex changing_;  // one change at a time; taken before mutex_
  std::vector<DevicePtr> devices_ MC_GUARDED_BY(changing_);
  mutable Mutex mutex_;
  std::map<const Buffer*, Entry> entries_ MC_GUARDED_BY(mutex_);
  std::multimap<const std::byte*, const Buffer*> by_address_ MC_GUARDED_BY(mutex_);
  std::vector<std::deque<BouncePtr>> bounces_ MC_GUARDED_BY(mutex_);  // idle, by NIC
};

}  // namespace mc::xfer::rdma
