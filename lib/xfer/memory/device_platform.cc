#include "xfer/memory/device_platform.h"

#include <algorithm>

#include "base/log.h"
#include "base/units.h"
#include "device/cuda.h"
#include "device/stand_in.h"
#include "topo/model/pci.h"

namespace mc::xfer {
namespace {

constexpr size_t kIdleStreams = 8;  // of a device
constexpr size_t kIdleStaging = 8;  // the same
constexpr size_t kStagingSlot = 1 * kMiB;
constexpr uint64_t kStandInBytes = 4 * kGiB;

}  // namespace

// Returns its stream for reuse when the work is done. After an error the stream may still have work
// in flight: it is closed, which waits for that, so that the memory at its ends may be given back.
class DevicePlatform::Lease {
 public:
  Lease(DevicePlatform& kind, size_t station, std::unique_ptr<device::Stream> stream)
      : kind_(&kind), station_(station), stream_(std::move(stream)) {}
  Lease(Lease&&) = default;
  Lease& operator=(Lease&&) = default;
  ~Lease() {
    if (stream_ == nullptr || !done_) return;
    Lock lock(kind_->mutex_);
    auto& idle = kind_->stations_[station_].idle;
    if (idle.size() < kIdleStreams) idle.push_back(std::move(stream_));
  }
  device::Stream& stream() { return *stream_; }
  Result<> finish() {
    MC_TRY(const auto event, stream_->record());
    MC_TRY_(event->wait());
    done_ = true;
    return {};
  }

 private:
  DevicePlatform* kind_;
  size_t station_;
  std::unique_ptr<device::Stream> stream_;
  bool done_ = false;
};

DevicePlatform::DevicePlatform(std::vector<device::DevicePtr> devices) {
  MC_CHECK(!devices.empty());
  for (auto& d : devices) {
    const device::Info& info = d->info();
    if (!info.note.empty()) log_warn("xfer", "%s: %s", info.location().c_str(), info.note.c_str());
    stations_.push_back({std::move(d)});
  }
  for (const Station& a : stations_)
    for (const Station& b : stations_)
      if (a.device != b.device)
        if (const auto can = a.device->reach(*b.device); !can)
          log_debug("xfer", "%s", can.error().what.c_str());
}
DevicePlatform::~DevicePlatform() = default;

Result<DevicePlatform::Lease> DevicePlatform::lease(size_t station) {
  {
    Lock lock(mutex_);
    auto& idle = stations_[station].idle;
    if (!idle.empty()) {
      auto stream = std::move(idle.back());
      idle.pop_back();
      return Lease(*this, station, std::move(stream));
    }
  }
  MC_TRY(auto stream, stations_[station].device->open_stream());
  return Lease(*this, station, std::move(stream));
}

// Pinning memory takes longer than moving it, so a device keeps some.
Result<device::Memory> DevicePlatform::take_staging(size_t station) {
  {
    Lock lock(mutex_);
    auto& idle = stations_[station].staging;
    if (!idle.empty()) {
      device::Memory memory = std::move(idle.back());
      idle.pop_back();
      return memory;
    }
  }
  return stations_[station].device->allocate_host(StagingStream::kSlots * kStagingSlot);
}

void DevicePlatform::give_staging(size_t station, device::Memory memory) {
  Lock lock(mutex_);
  auto& idle = stations_[station].staging;
  if (idle.size() < kIdleStaging) idle.push_back(std::move(memory));
}

Result<size_t> DevicePlatform::station_of(const std::byte* address, uint64_t bytes) const {
  Error why;
  for (size_t i = 0; i < stations_.size(); ++i) {
    const auto in = stations_[i].device->query(address);
    if (in) {
      const auto at = static_cast<uint64_t>(address - in->data());
      if (bytes <= in->size() && at <= in->size() - bytes) return i;
      return fail(Code::kInvalid, "%s at %p pass the end of their allocation at %s",
                  rounded_bytes_text(bytes).c_str(), static_cast<const void*>(address),
                  stations_[i].device->info().location().c_str());
    }
    if (why.what.empty() || in.error().code == Code::kUnavailable) why = in.error();
  }
  return fail(std::move(why));
}

Result<size_t> DevicePlatform::station_at(const std::string& location) const {
  for (size_t i = 0; i < stations_.size(); ++i)
    if (stations_[i].device->info().location() == location) return i;
  return fail(Code::kNotFound, "no device %s: the first here is %s", escape(location).c_str(),
              stations_[0].device->info().location().c_str());
}

std::vector<device::Info> DevicePlatform::devices() const {
  std::vector<device::Info> all;
  for (const Station& s : stations_) all.push_back(s.device->info());
  return all;
}

Result<> DevicePlatform::to_host(std::byte* host, const std::byte* device, size_t bytes) {
  return move({{host, device, bytes, bytes, bytes, 1}, false, true});
}
Result<> DevicePlatform::from_host(std::byte* device, const std::byte* host, size_t bytes) {
  return move({{device, host, bytes, bytes, bytes, 1}, true, false});
}

Result<> DevicePlatform::move(const CopyDescriptor& m) {
  const device::Rows& r = m.rows;
  const uint64_t to_span = (r.rows - 1) * r.to_stride + r.bytes;
  const uint64_t from_span = (r.rows - 1) * r.from_stride + r.bytes;
  size_t station = 0;
  // Between devices, the source pushes the bytes.
  if (m.to_device) {
    MC_TRY(station, station_of(r.to, to_span));
  }
  if (m.from_device) {
    MC_TRY(station, station_of(r.from, from_span));
  }
  MC_TRY(Lease lease, this->lease(station));
  device::Stream& s = lease.stream();
  // A kernel reaches host memory only where it is pinned.
  const bool one_launch =
      (m.to_device || pinned(r.to, to_span)) && (m.from_device || pinned(r.from, from_span));
  if (r.rows == 1 || one_launch) {
    MC_TRY_(r.rows == 1 ? s.copy(r.to, r.from, r.bytes) : s.copy_rows(r));
  } else {
    for (uint64_t i = 0; i < r.rows; ++i)
      MC_TRY_(s.copy(r.to + i * r.to_stride, r.from + i * r.from_stride, r.bytes));
  }
  return lease.finish();
}

Result<std::string> DevicePlatform::locate(std::span<const std::byte> memory) {
  MC_TRY(const size_t station, station_of(memory.data(), memory.size()));
  return stations_[station].device->info().location();
}

std::string DevicePlatform::pci(const std::string& location) const {
  const auto station = station_at(location);
  return station ? stations_[*station].device->info().pci : "";
}

Result<device::Memory> DevicePlatform::allocate(const std::string& location, uint64_t bytes) {
  MC_TRY(const size_t station, station_at(location));
  return stations_[station].device->allocate(bytes);
}

bool DevicePlatform::pinned(const std::byte* host, uint64_t bytes) {
  Lock lock(mutex_);
  auto it = pinned_.upper_bound(host);
  if (it == pinned_.begin()) return false;
  --it;
  const auto at = static_cast<uint64_t>(host - it->first);
  return at <= it->second && bytes <= it->second - at;
}

void DevicePlatform::pinned_range(std::span<std::byte> host, bool add) {
  Lock lock(mutex_);
  if (add)
    pinned_[host.data()] = host.size();
  else
    pinned_.erase(host.data());
}

// Pinned memory is pinned for every device.
Result<device::Memory> DevicePlatform::pin(std::span<std::byte> host) {
  MC_TRY(device::Memory held, stations_[0].device->pin(host));
  pinned_range(host, true);
  return device::Memory{
      host, std::shared_ptr<const void>(host.data(), [kind = weak_from_this(), held](const void*) {
        if (const auto k = kind.lock()) k->pinned_range(held.bytes, false);
      })};
}

Result<std::string> DevicePlatform::share(std::span<const std::byte> memory) {
  MC_TRY(const size_t station, station_of(memory.data(), memory.size()));
  return stations_[station].device->share(memory);
}

// On the device of the same number where there is one: the processes of a host see them alike,
// unless they were told otherwise, and then the driver finds the right one.
Result<device::Memory> DevicePlatform::open(const std::string& location,
                                            const std::string& handle) {
  const auto station = station_at(location);
  return stations_[station ? *station : 0].device->open(handle);
}

Result<DmaBuf> DevicePlatform::dma_buf(std::byte* device, size_t bytes) {
  MC_TRY(const size_t station, station_of(device, bytes));
  return stations_[station].device->dma_buf({device, bytes});
}

Result<> DevicePlatform::see_nic_writes(std::byte* device) {
  MC_TRY(const size_t station, station_of(device, 1));
  return stations_[station].device->see_nic_writes();
}

// ---- streaming

// Pinned slots; what was started in a slot is one launch, which goes when another slot is begun or
// this one is waited for.
class DeviceStream final : public StagingStream {
 public:
  DeviceStream(std::shared_ptr<DevicePlatform> kind, size_t station, DevicePlatform::Lease lease,
               std::byte* base, device::Memory memory)
      : kind_(std::move(kind)),
        station_(station),
        memory_(std::move(memory)),
        lease_(std::move(lease)),
        base_(base) {}
  ~DeviceStream() override {
    launch();
    // After an error copies may still run, into memory that nobody else may have then.
    if (lease_.finish().has_value()) kind_->give_staging(station_, std::move(memory_));
  }
  static std::unique_ptr<StagingStream> open(const std::shared_ptr<DevicePlatform>& kind,
                                             std::byte* base) {
    const auto station = kind->station_of(base, 1);
    if (!station) return nullptr;  // a plain one tells the error
    auto memory = kind->take_staging(*station);
    auto lease = kind->lease(*station);
    if (!memory || !lease) return nullptr;
    return std::make_unique<DeviceStream>(kind, *station, std::move(*lease), base,
                                          std::move(*memory));
  }
  std::span<std::byte> slot(size_t i) override {
    return memory_.bytes.subspan(i * kStagingSlot, kStagingSlot);
  }
  void start(size_t i, size_t from, bool write, uint64_t at, size_t bytes) override {
    if (!pending_.empty() && i != pending_slot_) launch();
    pending_slot_ = i;
    std::byte* const host = slot(i).data() + from;
    if (write)
      pending_.push_back({base_ + at, host, bytes});
    else
      pending_.push_back({host, base_ + at, bytes});
  }
  Result<> finish(size_t i) override {
    if (!pending_.empty() && i == pending_slot_) launch();
    if (!failed_[i]) return std::exchange(failed_[i], Result<>());
    const auto event = std::exchange(events_[i], nullptr);
    return event == nullptr ? Result<>() : event->wait();
  }

 private:
  void launch() {
    if (pending_.empty()) return;
    const size_t i = pending_slot_;
    // The memory may be freed since the stream was opened.
    const auto known = kind_->station_of(base_, 1);
    Result<> outcome = known ? lease_.stream().copy_blocks(pending_) : fail(known.error());
    pending_.clear();
    if (outcome) {
      auto event = lease_.stream().record();
      if (event)
        events_[i] = std::move(*event);
      else
        outcome = fail(event.error());
    }
    if (failed_[i]) failed_[i] = outcome;
  }
  const std::shared_ptr<DevicePlatform> kind_;
  const size_t station_;
  device::Memory memory_;
  DevicePlatform::Lease lease_;
  std::byte* const base_;
  std::vector<device::Block> pending_;
  size_t pending_slot_ = 0;
  std::unique_ptr<device::Event> events_[kSlots];
  Result<> failed_[kSlots];
};

std::unique_ptr<StagingStream> DevicePlatform::staging_stream(std::byte* base) {
  return DeviceStream::open(shared_from_this(), base);
}

Result<std::shared_ptr<DevicePlatform>> open_device_platform(const std::string& word,
                                                             const Clock& clock) {
  const size_t at = word.find('@');
  const std::string pci = at == std::string::npos ? "" : word.substr(at + 1);
  const std::string which = word.substr(0, at);
  const size_t colon = which.find(':');
  std::string name = which.substr(0, colon);
  uint64_t only = 0;
  if (colon != std::string::npos) {
    if (const auto number = parse_uint(std::string_view(which).substr(colon + 1)))
      only = *number;
    else
      name.clear();  // no device, as told below
  }
  if (at != std::string::npos && (name != "stand-in" || !topo::kernel_pci_address(pci)))
    return fail(Code::kInvalid, "'%s': a place such as @0000:4f:00.0 is for stand-ins",
                escape(word).c_str());
  std::vector<device::DevicePtr> devices;
  if (name == "stand-in" && only < 64) {
    devices.push_back(device::StandIn::make(
        clock, {.ordinal = static_cast<int>(only), .bytes = kStandInBytes, .pci = pci}));
  } else if (name == "cuda") {
    const device::Found& found = device::find_cuda();
    if (found.devices.empty()) return fail(found.why);
    for (const device::Info& info : found.devices) {
      if (colon != std::string::npos && static_cast<uint64_t>(info.ordinal) != only) continue;
      MC_TRY(device::DevicePtr device, device::open_cuda(info.ordinal));
      devices.push_back(std::move(device));
    }
    if (devices.empty())
      return fail(Code::kNotFound, "no %s: this machine has %zu", escape(word).c_str(),
                  found.devices.size());
  } else {
    return fail(Code::kInvalid,
                "'%s' is no device: give cuda, cuda:1, stand-in, stand-in:1 "
                "or stand-in:1@0000:4f:00.0",
                escape(word).c_str());
  }
  return std::make_shared<DevicePlatform>(std::move(devices));
}

}  // namespace mc::xfer
