#include "xfer/transports/rdma/regions.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "xfer/core/numa.h"

namespace mc::xfer::rdma {
namespace {

constexpr uint64_t kSideBySide = 64 << 20;  // so much takes a NIC long to register
constexpr uint64_t kBounceMin = 1 << 20;
constexpr size_t kBouncesIdle = 8;  // of a NIC

// Of host memory whose location names no node ("cpu:1"), where its first page is.
MemoryLocation location_of(const Buffer& buffer) {
  if (buffer.backend != nullptr) return buffer.memory_location;
  const char* const text = buffer.location.c_str();
  int node = -1;
  if (buffer.location.starts_with("cpu:"))
    std::from_chars(text + 4, text + buffer.location.size(), node);
  return {node >= 0 ? node : numa_node_of(buffer.data), -1};
}

std::vector<double> cost_buckets() { return {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10}; }

}  // namespace

Regions::Regions(const Clock& clock, Metrics& metrics, size_t nics)
    : clock_(clock),
      made_(metrics.counter("mc_xfer_rdma_registrations_total", "memory registered on a NIC")),
      found_(metrics.counter("mc_xfer_rdma_registration_hits_total",
                             "transfers whose local memory was registered already")),
      took_(metrics.histogram("mc_xfer_rdma_registration_seconds",
                              "what registering memory on a NIC took", cost_buckets())),
      registered_(metrics.gauge("mc_xfer_rdma_registered_bytes",
                                "offered memory that NICs have registered, each counted once")),
      devices_(nics),
      bounces_(nics) {}

Result<RegionPtr> Regions::timed(const DevicePtr& device, std::byte* data, uint64_t bytes,
                                 int access) {
  const Time before = clock_.now();
  auto region = device->register_memory(data, bytes, access);
  if (region) {
    made_.add();
    took_.observe(to_seconds(clock_.now() - before));
  }
  return region;
}

// By its dma-buf, else by its address, which the kernel module of some GPUs (nvidia_peermem) makes
// known to NICs.
Result<RegionPtr> Regions::of_device(const DevicePtr& device, const Entry& e, int access) {
  Result<RegionPtr> region = fail(Code::kUnsupported, "%s", "no dma-buf");
  const auto buf = e.backend->dma_buf(e.bytes);
  if (buf) {
    region = device->register_dmabuf(buf->fd.get(), buf->offset, e.bytes,
                                     reinterpret_cast<uint64_t>(e.data), access);
    if (region) return region;
  } else {
    region = fail(buf.error());
  }
  auto by_address = timed(device, e.data, e.bytes, access);
  if (!by_address) return region;
  log_info("xfer", "rdma: %s reaches memory of a device by its address: %s", device->name().c_str(),
           region.error().what.c_str());
  return by_address;
}

RegionPtr Regions::make(const DevicePtr& device, const Entry& e) {
  const int access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | (e.writable ? IBV_ACCESS_REMOTE_WRITE : 0);
  Result<RegionPtr> region;
  if (e.backend == nullptr) {
    region = timed(device, e.data, e.bytes, access);
    // The kernel lets no NIC write to pages that are mapped read-only, or to those of a file. Peers
    // read them all the same.
    if (!region && !e.writable) region = timed(device, e.data, e.bytes, IBV_ACCESS_REMOTE_READ);
  } else {
    region = of_device(device, e, access);
    if (!region) {
      log_info("xfer", "rdma: memory of a device is staged by its owner: %s",
               region.error().what.c_str());
      return nullptr;
    }
  }
  if (region) return *region;
  log_warn("xfer", "rdma does not reach this memory: %s", region.error().what.c_str());
  return nullptr;
}

void Regions::offer(const Buffer& buffer) {
  if (buffer.data == nullptr) return;  // a file
  Lock changing(changing_);
  Entry e{buffer.data, buffer.bytes, buffer.writable, buffer.backend, {}, {}};
  e.on.resize(devices_.size());
  std::vector<std::thread> others;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i] == nullptr) continue;
    const auto on_device = [this, &e, i, device = devices_[i]] { e.on[i] = make(device, e); };
    bool beside = i + 1 < devices_.size() && e.bytes >= kSideBySide;
    try {
      if (beside) others.emplace_back(on_device);
    } catch (const std::system_error&) {  // no thread is available
      beside = false;
    }
    if (!beside) on_device();
  }
  for (std::thread& other : others) other.join();
  e.at = location_of(buffer);  // its pages lie somewhere only once they are registered
  Lock lock(mutex_);
  by_address_.emplace(buffer.data, &buffer);
  entries_.emplace(&buffer, std::move(e));
  registered_.set(registered_.value() + static_cast<double>(buffer.bytes));
}

void Regions::withdraw(const Buffer& buffer) {
  Lock changing(changing_);
  Entry gone;
  {
    Lock lock(mutex_);
    const auto it = entries_.find(&buffer);
    if (it == entries_.end()) return;
    gone = std::move(it->second);
    entries_.erase(it);
    registered_.set(registered_.value() - static_cast<double>(buffer.bytes));
    std::erase_if(by_address_, [&](const auto& known) { return known.second == &buffer; });
  }
  for (const RegionPtr& region : gone.on)
    if (region != nullptr) region->revoke();
}

void Regions::describe(const Buffer& buffer, BufferInfo& info) const {
  Lock lock(mutex_);
  const auto it = entries_.find(&buffer);
  if (it == entries_.end()) return;
  info.rdma_addr = reinterpret_cast<uint64_t>(it->second.data);
  info.node = static_cast<uint32_t>(it->second.at.node) + 1;
  info.gpu = static_cast<uint32_t>(it->second.at.gpu) + 1;
  for (const RegionPtr& region : it->second.on)
    info.rkeys.push_back(region == nullptr ? 0 : region->rkey());
}

void Regions::use(size_t nic, const DevicePtr& device) {
  Lock changing(changing_);
  devices_[nic] = device;
  std::vector<std::pair<const Buffer*, Entry>> all;
  {
    Lock lock(mutex_);
    for (auto& [buffer, e] : entries_) all.emplace_back(buffer, e);
  }
  for (auto& [buffer, e] : all) e.on[nic] = device == nullptr ? nullptr : make(device, e);
  std::deque<BouncePtr> gone;  // their device is
  Lock lock(mutex_);
  gone.swap(bounces_[nic]);
  for (auto& [buffer, e] : all) entries_.at(buffer).on[nic].swap(e.on[nic]);
}

bool Regions::takes(const Buffer& buffer) const {
  Lock lock(mutex_);
  const auto it = entries_.find(&buffer);
  if (it == entries_.end() || it->second.backend == nullptr) return false;
  const auto& on = it->second.on;
  return std::any_of(on.begin(), on.end(), [](const RegionPtr& r) { return r != nullptr; });
}

Result<RegionPtr> Regions::known(size_t nic, const DevicePtr& device, std::byte* at, uint64_t bytes,
                                 bool into) {
  {
    Lock lock(mutex_);
    auto it = by_address_.upper_bound(at);
    while (it != by_address_.begin()) {
      --it;
      const Entry& e = entries_.at(it->second);
      const auto from = static_cast<uint64_t>(at - e.data);
      if (from >= e.bytes) break;
      if (e.backend != nullptr && e.on[nic] == nullptr)
        return fail(Code::kUnsupported, "%s has not registered that memory of a device",
                    device->name().c_str());
      if (bytes > e.bytes - from || e.on[nic] == nullptr) continue;
      if (into && !e.on[nic]->written())
        return fail(Code::kUnsupported, "%s may not write to that memory", device->name().c_str());
      found_.add();
      return e.on[nic];
    }
  }
  return RegionPtr();
}

Result<RegionPtr> Regions::local(const DevicePtr& device, std::byte* at, uint64_t bytes,
                                 bool into) {
  return timed(device, at, bytes, into ? IBV_ACCESS_LOCAL_WRITE : 0);
}

Result<BouncePtr> Regions::bounce(size_t nic, const DevicePtr& device, uint64_t bytes) {
  {
    Lock lock(mutex_);
    auto& idle = bounces_[nic];
    for (auto it = idle.begin(); it != idle.end(); ++it) {
      if ((*it)->bytes < bytes || (*it)->device != device.get()) continue;
      BouncePtr found = std::move(*it);
      idle.erase(it);
      return found;
    }
  }
  auto made = std::make_shared<Bounce>();
  made->bytes = std::max(bytes, kBounceMin);
  made->device = device.get();
  made->data = std::make_unique_for_overwrite<std::byte[]>(made->bytes);
  MC_TRY(made->region, timed(device, made->data.get(), made->bytes, IBV_ACCESS_LOCAL_WRITE));
  return made;
}

void Regions::give_back(size_t nic, BouncePtr bounce) {
  if (bounce->device->dead()) return;
  BouncePtr surplus;  // ends without the lock, as that takes long
  Lock lock(mutex_);
  auto& idle = bounces_[nic];
  idle.push_back(std::move(bounce));
  if (idle.size() > kBouncesIdle) {
    surplus = std::move(idle.front());
    idle.pop_front();
  }
}

void Regions::keys(size_t nic, std::vector<uint64_t>* offsets, std::vector<uint32_t>* rkeys) const {
  Lock lock(mutex_);
  for (const auto& [buffer, e] : entries_) {
    if (e.on[nic] == nullptr) continue;
    offsets->push_back(buffer->offset);
    rkeys->push_back(e.on[nic]->rkey());
  }
}

uint32_t Regions::key(size_t nic, uint64_t offset) const {
  Lock lock(mutex_);
  for (const auto& [buffer, e] : entries_)
    if (buffer->offset == offset && e.on[nic] != nullptr) return e.on[nic]->rkey();
  return 0;
}

}  // namespace mc::xfer::rdma
