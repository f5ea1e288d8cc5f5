#include "xfer/transports/rdma/regions.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mc::xfer::rdma {
namespace {

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
      devices_(nics) {}

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

RegionPtr Regions::make(const DevicePtr& device, const Entry& e) {
  const int access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | (e.writable ? IBV_ACCESS_REMOTE_WRITE : 0);
  Result<RegionPtr> region;
  if (e.backend == nullptr) {
    region = timed(device, e.data, e.bytes, access);
  } else {
    const auto buf = e.backend->dma_buf(e.bytes);
    if (!buf) return nullptr;  // its owner stages it, over tcp
    region = device->register_dmabuf(buf->fd.get(), buf->offset, e.bytes,
                                     reinterpret_cast<uint64_t>(e.data), access);
  }
  if (region) return *region;
  log_warn("xfer", "rdma does not reach this memory: %s", region.error().what.c_str());
  return nullptr;
}

void Regions::offer(const Buffer& buffer) {
  if (buffer.data == nullptr) return;  // a file
  Lock changing(changing_);
  Entry e{buffer.data, buffer.bytes, buffer.writable, buffer.backend, {}};
  for (const DevicePtr& device : devices_)
    e.on.push_back(device == nullptr ? nullptr : make(device, e));
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
  Lock lock(mutex_);
  for (auto& [buffer, e] : all) entries_.at(buffer).on[nic].swap(e.on[nic]);
}

bool Regions::takes(const Buffer& buffer) const {
  Lock lock(mutex_);
  const auto it = entries_.find(&buffer);
  if (it == entries_.end() || it->second.backend == nullptr) return false;
  const auto& on = it->second.on;
  return std::any_of(on.begin(), on.end(), [](const RegionPtr& r) { return r != nullptr; });
}

Result<RegionPtr> Regions::local(size_t nic, const DevicePtr& device, std::byte* at, uint64_t bytes,
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
      found_.add();
      return e.on[nic];
    }
  }
  return timed(device, at, bytes, into ? IBV_ACCESS_LOCAL_WRITE : 0);
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
