#include "device/cuda.h"

#include <algorithm>
#include <map>

#include "base/mutex.h"
#include "device/cuda_core.h"
#include "device/handle.h"
#include "device/kernels/copy_kernels.h"

namespace mc::device {
namespace {

using namespace driver;

const Result<Driver>& found_driver() {  // not started
  static const Result<Driver> found = load_driver("libcuda.so.1");
  return found;
}

const Result<Driver>& loaded_driver() {
  static const Result<Driver> loaded = [] {
    auto d = found_driver();
    if (!d) return d;
    if (const Status s = d->init(0); s != kOk)
      return Result<Driver>(d->failure(s, "the CUDA driver does not start"));
    return d;
  }();
  return loaded;
}

Result<Info> info_of(const Driver& d, int ordinal) {
  Info info;
  info.kind = "cuda";
  info.ordinal = ordinal;
  int device = 0, major = 0, minor = 0;
  char name[256] = "", pci[32] = "";
  size_t bytes = 0;
  MC_TRY_(ok(d, d.device_get(&device, ordinal), "cuDeviceGet"));
  MC_TRY_(ok(d, d.device_name(name, sizeof name, device), "cuDeviceGetName"));
  MC_TRY_(ok(d, d.device_total(&bytes, device), "cuDeviceTotalMem"));
  MC_TRY_(ok(d, d.device_pci(pci, sizeof pci, device), "cuDeviceGetPCIBusId"));
  MC_TRY_(ok(d, d.device_attribute(&major, kCapabilityMajor, device), "cuDeviceGetAttribute"));
  MC_TRY_(ok(d, d.device_attribute(&minor, kCapabilityMinor, device), "cuDeviceGetAttribute"));
  info.name = name;
  info.pci = pci;
  std::transform(info.pci.begin(), info.pci.end(), info.pci.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  info.bytes = bytes;
  info.capability = static_cast<uint32_t>(major * 10 + minor);
  return info;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(CorePtr core) : core_(std::move(core)) {}
  const Info& info() const override { return core_->info; }
  Result<uint64_t> free_bytes() override;
  Result<Memory> allocate(uint64_t bytes) override;
  Result<Memory> allocate_host(uint64_t bytes) override;
  Result<Memory> pin(std::span<std::byte> host) override;
  Result<std::span<std::byte>> query(const std::byte* address) override;
  Result<std::unique_ptr<Stream>> open_stream() override { return open_cuda_stream(core_); }
  Result<std::string> products() override {
    MC_TRY(const cublaslt::CublasLt* const found, core_->products());
    return found->name();
  }
  Result<> reach(Device& other) override;
  Result<std::string> share(std::span<const std::byte> memory) override;
  Result<Memory> open(std::string_view handle) override;
  Result<DmaBuf> dma_buf(std::span<const std::byte> memory) override;
  Result<> see_nic_writes() override;

 private:
  const CorePtr core_;
  Mutex mutex_;
  // Memory of other processes that is open here, by handle: it is opened once.
  std::map<std::string, std::weak_ptr<const void>> opened_ MC_GUARDED_BY(mutex_);
};

Result<uint64_t> CudaDevice::free_bytes() {
  size_t free = 0, total = 0;
  MC_TRY(const Entered in, core_->enter());
  MC_TRY_(core_->ok(core_->d.memory_info(&free, &total), "cuMemGetInfo"));
  return free;
}

Result<Memory> CudaDevice::allocate(uint64_t bytes) {
  Pointer p = 0;
  MC_TRY(const Entered in, core_->enter());
  MC_TRY_(core_->ok(core_->d.memory_alloc(&p, bytes), "cuMemAlloc"));
  auto* const data = reinterpret_cast<std::byte*>(p);
  return Memory{{data, bytes}, std::shared_ptr<const void>(data, [core = core_, p](const void*) {
                  if (const auto entered = core->enter()) (void)core->d.memory_free(p);
                })};
}

Result<Memory> CudaDevice::allocate_host(uint64_t bytes) {
  void* p = nullptr;
  MC_TRY(const Entered in, core_->enter());
  MC_TRY_(core_->ok(core_->d.host_alloc(&p, bytes, kHostPortable), "cuMemHostAlloc"));
  return Memory{{static_cast<std::byte*>(p), bytes},
                std::shared_ptr<const void>(p, [core = core_, p](const void*) {
                  if (const auto entered = core->enter()) (void)core->d.host_free(p);
                })};
}

Result<Memory> CudaDevice::pin(std::span<std::byte> host) {
  MC_TRY(const Entered in, core_->enter());
  const Status s = core_->d.host_register(host.data(), host.size(), kHostPortable);
  if (s == kHostAlreadyRegistered) return Memory{host, core_};
  MC_TRY_(core_->ok(s, "cuMemHostRegister"));
  void* const p = host.data();
  return Memory{host, std::shared_ptr<const void>(p, [core = core_, p](const void*) {
                  if (const auto entered = core->enter()) (void)core->d.host_unregister(p);
                })};
}

Result<std::span<std::byte>> CudaDevice::query(const std::byte* address) {
  MC_TRY(const Entered in, core_->enter());
  const auto p = reinterpret_cast<Pointer>(address);
  unsigned type = 0;
  Status s = core_->d.pointer_attribute(&type, kMemoryType, p);
  if (s == kInvalidValue || (s == kOk && type != kMemoryOfDevice))
    return fail(Code::kInvalid, "%p is no memory of a device (freed?)",
                static_cast<const void*>(address));
  MC_TRY_(core_->ok(s, "cuPointerGetAttribute"));
  int ordinal = 0;
  MC_TRY_(
      core_->ok(core_->d.pointer_attribute(&ordinal, kDeviceOrdinal, p), "cuPointerGetAttribute"));
  if (ordinal != core_->info.ordinal)
    return fail(Code::kInvalid, "%p is memory of cuda:%d, not of %s",
                static_cast<const void*>(address), ordinal, core_->info.location().c_str());
  Pointer base = 0;
  size_t bytes = 0;
  MC_TRY_(core_->ok(core_->d.address_range(&base, &bytes, p), "cuMemGetAddressRange"));
  return std::span(reinterpret_cast<std::byte*>(base), bytes);
}

Result<> CudaDevice::reach(Device& other) {
  auto* const peer = dynamic_cast<CudaDevice*>(&other);
  int can = 0;
  if (peer != nullptr)
    MC_TRY_(core_->ok(core_->d.can_access_peer(&can, core_->device, peer->core_->device),
                      "cuDeviceCanAccessPeer"));
  if (can == 0)
    return fail(Code::kUnsupported, "%s does not reach the memory of %s",
                core_->info.location().c_str(), other.info().location().c_str());
  MC_TRY(const Entered in, core_->enter());
  const Status s = core_->d.enable_peer(peer->core_->context, 0);
  return s == kPeerAlreadyEnabled ? Result<>() : core_->ok(s, "cuCtxEnablePeerAccess");
}

// The allocation that holds the whole range.
Result<std::span<std::byte>> whole(Device& device, std::span<const std::byte> memory) {
  MC_TRY(const auto in, device.query(memory.data()));
  const auto at = static_cast<uint64_t>(memory.data() - in.data());
  if (memory.size() > in.size() - at)
    return fail(Code::kInvalid, "%zu bytes at %p pass the end of their allocation", memory.size(),
                static_cast<const void*>(memory.data()));
  return in;
}

Result<std::string> CudaDevice::share(std::span<const std::byte> memory) {
  MC_TRY(const auto within, whole(*this, memory));
  MC_TRY(const Entered in, core_->enter());
  IpcHandle raw;
  MC_TRY_(core_->ok(core_->d.ipc_get(&raw, reinterpret_cast<Pointer>(within.data())),
                    "cuIpcGetMemHandle"));
  MC_TRY(Handle h, own_handle("cuda", core_->info.ordinal));
  h.offset = static_cast<uint64_t>(memory.data() - within.data());
  h.bytes = memory.size();
  static_assert(sizeof h.raw == sizeof raw);
  std::copy_n(raw.reserved, sizeof raw, h.raw);
  return encode(h);
}

Result<Memory> CudaDevice::open(std::string_view handle) {
  MC_TRY(const Handle h, decode(handle, "cuda"));
  const std::string key(reinterpret_cast<const char*>(h.raw), sizeof h.raw);
  const auto part = [&h](const std::shared_ptr<const void>& base) {
    auto* const data = static_cast<std::byte*>(const_cast<void*>(base.get())) + h.offset;
    return Memory{{data, h.bytes}, base};
  };
  MC_TRY(const Entered in, core_->enter());
  Lock lock(mutex_);
  if (const auto base = opened_[key].lock()) return part(base);
  IpcHandle raw;
  std::copy_n(h.raw, sizeof raw, raw.reserved);
  Pointer p = 0;
  const Status s = core_->d.ipc_open(&p, raw, kIpcLazyPeer);
  if (s == kMapFailed || s == kInvalidValue)
    return fail(Code::kUnavailable, "process %d does not have that memory any more", h.pid);
  MC_TRY_(core_->ok(s, "cuIpcOpenMemHandle"));
  const std::shared_ptr<const void> base(reinterpret_cast<void*>(p),
                                         [core = core_, p](const void*) {
                                           if (const auto entered = core->enter())
                                             (void)core->d.ipc_close(p);
                                         });
  Pointer start = 0;
  size_t bytes = 0;
  MC_TRY_(core_->ok(core_->d.address_range(&start, &bytes, p), "cuMemGetAddressRange"));
  if (h.offset > bytes || h.bytes > bytes - h.offset)
    return fail(Code::kCorrupt, "the range of a handle passes the end of its memory");
  std::erase_if(opened_, [](const auto& entry) { return entry.second.expired(); });
  opened_[key] = base;
  return part(base);
}

Result<Device::DmaBuf> CudaDevice::dma_buf(std::span<const std::byte> memory) {
  if (core_->d.handle_for_range == nullptr)
    return fail(Code::kUnsupported, "this CUDA driver has no dma-bufs");
  MC_TRY(const auto within, whole(*this, memory));
  MC_TRY(const Entered in, core_->enter());
  // The driver requires whole pages.
  constexpr Pointer kPageMask = 65536 - 1;
  const auto first = reinterpret_cast<Pointer>(memory.data());
  const Pointer begin = std::max(first & ~kPageMask, reinterpret_cast<Pointer>(within.data()));
  const Pointer end = (first + memory.size() + kPageMask) & ~kPageMask;
  int fd = -1;
  MC_TRY_(core_->ok(core_->d.handle_for_range(&fd, begin, end - begin, kDmaBufFd, 0),
                    "cuMemGetHandleForAddressRange"));
  return DmaBuf{io::Fd(fd), first - begin};
}

Result<> CudaDevice::see_nic_writes() {
  int ordering = 0;
  const Status known = core_->d.device_attribute(&ordering, kNicWritesOrdering, core_->device);
  if (known == kOk && ordering >= kOrderedForOwner) return {};
  if (core_->d.flush_nic_writes == nullptr)
    return fail(Code::kUnsupported, "this CUDA driver has no cuFlushGPUDirectRDMAWrites");
  MC_TRY(const Entered in, core_->enter());
  return core_->ok(core_->d.flush_nic_writes(kFlushOfContext, kFlushToOwner),
                   "cuFlushGPUDirectRDMAWrites");
}

}  // namespace

Found find_cuda(const Driver& d) {
  Found found;
  int version = 0, count = 0;
  if (auto r = ok(d, d.driver_version(&version), "cuDriverGetVersion"); !r) {
    found.why = r.error();
    return found;
  }
  found.driver = strf("%d.%d", version / 1000, version % 1000 / 10);
  if (auto r = ok(d, d.device_count(&count), "cuDeviceGetCount"); !r) {
    found.why = r.error();
    return found;
  }
  for (int i = 0; i < count; ++i) {
    auto info = info_of(d, i);
    if (info)
      found.devices.push_back(std::move(*info));
    else
      found.why = info.error();
  }
  if (count == 0) found.why = {Code::kUnsupported, "the CUDA driver has no device"};
  return found;
}

Result<DevicePtr> open_cuda(const Driver& d, int ordinal, const void* kernels,
                            FindProducts products) {
  const Found found = find_cuda(d);
  const auto info = std::find_if(found.devices.begin(), found.devices.end(),
                                 [&](const Info& i) { return i.ordinal == ordinal; });
  if (info == found.devices.end() && found.devices.empty()) return fail(found.why);
  if (info == found.devices.end())
    return fail(Code::kNotFound, "no cuda:%d: this machine has %zu CUDA devices", ordinal,
                found.devices.size());
  MC_TRY(CorePtr core, Core::make(d, *info, kernels, products));
  return std::make_shared<CudaDevice>(std::move(core));
}

bool has_cuda_driver() { return found_driver().has_value(); }

const Found& find_cuda() {
  static const Found found = [] {
    const auto& d = loaded_driver();
    return d ? find_cuda(*d) : Found{{}, {}, d.error()};
  }();
  return found;
}

Result<DevicePtr> open_cuda(int ordinal) {
  const auto& d = loaded_driver();
  if (!d) return fail(d.error());
  static Mutex mutex;
  static std::map<int, std::weak_ptr<Device>> opened;
  Lock lock(mutex);
  if (DevicePtr device = opened[ordinal].lock()) return device;
  size_t bytes = 0;
  MC_TRY(DevicePtr device, open_cuda(*d, ordinal, mc_kernels_image(&bytes), &cublaslt::loaded));
  opened[ordinal] = device;
  return device;
}

std::string kernels_summary() {
  const std::string built = mc_kernels_architectures();
  return built.empty() ? "no kernels in this build (no nvcc)" : "kernels for " + built;
}

std::string cuda_summary() {
  const Found& found = find_cuda();
  if (found.driver.empty()) return "CUDA: " + found.why.what + "; " + kernels_summary();
  const size_t n = found.devices.size();
  std::string out =
      strf("CUDA: driver %s, %zu device%s", found.driver.c_str(), n, n == 1 ? "" : "s");
  if (!found.why.what.empty()) out += " (" + found.why.what + ")";
  const auto& products = cublaslt::loaded();
  out += "; " + (products ? products->name() : "no cuBLASLt");
  return out + "; " + kernels_summary();
}

}  // namespace mc::device
