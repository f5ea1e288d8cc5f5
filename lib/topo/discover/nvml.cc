#include "topo/discover/nvml.h"

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/result.h"
#include "base/symbols.h"
#include "topo/model/pci.h"

namespace mc::topo {
namespace {

using Status = int;  // nvmlReturn_t
using Handle = struct NvmlDeviceTag*;

constexpr Status kOk = 0, kNotInitialised = 1, kNotSupported = 3, kGpuLost = 15,
                 kResetRequired = 16;
constexpr int kAccessGranted = 0;  // nvmlGpuP2PStatus_t
constexpr unsigned kGpusMax = 256, kLinksMax = 64;
constexpr unsigned kRemoteGpu = 0, kRemoteSwitch = 2;                // nvmlIntNvLinkDeviceType_t
constexpr int kAccessRead = 0, kAccessWrite = 1, kAccessNvLink = 2;  // nvmlGpuP2PCapsIndex_t

struct PciInfo {  // nvmlPciInfo_t
  char legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};
static_assert(sizeof(PciInfo) == 68);

struct Functions {
  Status (*init)();
  const char* (*error_string)(Status);
  Status (*count)(unsigned*);
  Status (*by_index)(unsigned, Handle*);
  Status (*pci_info)(Handle, PciInfo*);
  // Not in every version: null.
  Status (*library_version)(char*, unsigned);
  Status (*driver_version)(char*, unsigned);
  Status (*name)(Handle, char*, unsigned);
  Status (*link_state)(Handle, unsigned link, unsigned* active);
  Status (*link_version)(Handle, unsigned link, unsigned*);
  Status (*link_remote)(Handle, unsigned link, PciInfo*);
  Status (*link_remote_type)(Handle, unsigned link, unsigned*);
  Status (*common_ancestor)(Handle, Handle, unsigned*);
  Status (*access)(Handle, Handle, int kind, int* status);
};

// One copy of the library, loaded and perhaps initialised; never unloaded.
class Library {
 public:
  explicit Library(std::string name) : name_(std::move(name)) {}

  NvmlAnswer ask() {
    const Lock lock(mutex_);
    NvmlAnswer answer;
    answer.why_none = ready();
    answer.installed = library_.has_value();
    if (!answer.why_none.empty()) return answer;
    answer.library = version(f_.library_version);
    answer.driver = version(f_.driver_version);
    unsigned count = 0;
    if (const Status status = f_.count(&count); status != kOk) {
      answer.why_none = said("nvmlDeviceGetCount", status);
      initialised_ = status != kNotInitialised;
      return answer;
    }
    std::vector<Handle> handles(std::min(count, kGpusMax));
    for (unsigned i = 0; i < handles.size(); ++i) answer.gpus.push_back(gpu(i, handles[i]));
    for (uint32_t a = 0; a < handles.size(); ++a) {
      for (uint32_t b = a + 1; b < handles.size(); ++b) {
        if (handles[a] && handles[b]) answer.pairs.push_back(pair(a, b, handles[a], handles[b]));
      }
    }
    return answer;
  }

 private:
  // "" when it can be asked.
  std::string ready() {
    if (!library_) {
      auto loaded = Symbols::open(name_.c_str());
      if (!loaded) return loaded.error().what;
      library_ = std::move(*loaded);
      library_->need(f_.init, "nvmlInit_v2");
      library_->need(f_.error_string, "nvmlErrorString");
      library_->need(f_.count, "nvmlDeviceGetCount_v2");
      library_->need(f_.by_index, "nvmlDeviceGetHandleByIndex_v2");
      library_->need(f_.pci_info, "nvmlDeviceGetPciInfo_v3");
      library_->optional(f_.library_version, "nvmlSystemGetNVMLVersion");
      library_->optional(f_.driver_version, "nvmlSystemGetDriverVersion");
      library_->optional(f_.name, "nvmlDeviceGetName");
      library_->optional(f_.link_state, "nvmlDeviceGetNvLinkState");
      library_->optional(f_.link_version, "nvmlDeviceGetNvLinkVersion");
      library_->optional(f_.link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
      library_->optional(f_.link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
      library_->optional(f_.common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
      library_->optional(f_.access, "nvmlDeviceGetP2PStatus");
    }
    if (const std::string& lacks = library_->missing(); !lacks.empty())
      return name_ + " has no " + lacks + ": the driver is too old";
    if (initialised_) return "";
    const Status status = f_.init();
    initialised_ = status == kOk;
    return initialised_ ? "" : said("nvmlInit", status);
  }

  std::string said(const char* call, Status status) const {
    const char* const text = f_.error_string(status);
    return strf("%s (%s: NVML error %d)", text ? text : "no text", call, status);
  }

  static std::string version(Status (*ask)(char*, unsigned)) {
    std::array<char, 96> text{};
    if (!ask || ask(text.data(), text.size() - 1) != kOk) return "";
    return text.data();
  }

  static std::string address(const PciInfo& info) {
    const std::string text(info.address, ::strnlen(info.address, sizeof info.address));
    return kernel_pci_address(text).value_or("");
  }

  NvmlGpu gpu(unsigned index, Handle& handle) {
    NvmlGpu out;
    PciInfo info{};
    if (const Status status = f_.by_index(index, &handle); status != kOk) {
      handle = nullptr;
      out.trouble = strf("GPU %u of NVML: ", index) + said("nvmlDeviceGetHandleByIndex", status);
      return out;
    }
    if (const Status status = f_.pci_info(handle, &info); status == kOk) {
      out.pci = address(info);
    } else {
      out.trouble = said("nvmlDeviceGetPciInfo", status);
    }
    std::array<char, 97> name{};
    if (f_.name) {
      const Status status = f_.name(handle, name.data(), name.size() - 1);
      if (status != kOk && out.trouble.empty()) out.trouble = said("nvmlDeviceGetName", status);
      out.name = name.data();
    }
    if (out.trouble.empty()) out.links = links(handle, out.trouble);
    return out;
  }

  std::vector<NvLink> links(Handle handle, std::string& trouble) const {
    std::vector<NvLink> out;
    for (unsigned i = 0; f_.link_state && i < kLinksMax; ++i) {
      unsigned active = 0;
      const Status status = f_.link_state(handle, i, &active);
      if (status == kNotSupported) continue;  // this number is not wired, a later one may be
      if (status != kOk) {
        // Past the last one NVML calls the argument invalid; a GPU that fell off says so.
        if (status == kGpuLost || status == kResetRequired) {
          trouble = said("nvmlDeviceGetNvLinkState", status);
        }
        break;
      }
      out.push_back(link(handle, i, active != 0));
    }
    return out;
  }

  NvLink link(Handle handle, unsigned index, bool active) const {
    NvLink out{.active = active};
    unsigned number = 0;
    if (!active) return out;
    if (f_.link_version && f_.link_version(handle, index, &number) == kOk) out.generation = number;
    PciInfo info{};
    if (f_.link_remote && f_.link_remote(handle, index, &info) == kOk) out.remote = address(info);
    if (f_.link_remote_type && f_.link_remote_type(handle, index, &number) == kOk) {
      if (number == kRemoteGpu) out.to = NvLink::To::kGpu;
      if (number == kRemoteSwitch) out.to = NvLink::To::kSwitch;
    }
    return out;
  }

  NvmlPair pair(uint32_t a, uint32_t b, Handle at_a, Handle at_b) const {
    NvmlPair out{.a = a, .b = b};
    unsigned level = 0;
    if (f_.common_ancestor && f_.common_ancestor(at_a, at_b, &level) == kOk) {
      switch (level) {  // nvmlGpuTopologyLevel_t
        case 0: out.path = "on one board"; break;
        case 10: out.path = "PIX"; break;
        case 20: out.path = "PXB"; break;
        case 30: out.path = "PHB"; break;
        case 40: out.path = "NODE"; break;
        case 50: out.path = "SYS"; break;
        default: break;
      }
    }
    for (const int kind : {kAccessRead, kAccessWrite}) {
      int status = 0;
      if (!f_.access || f_.access(at_a, at_b, kind, &status) != kOk) continue;
      switch (status) {  // nvmlGpuP2PStatus_t
        case 1: out.no_access = "the chipset does not support it"; break;
        case 2: out.no_access = "the GPUs do not support it"; break;
        case 3: out.no_access = "the I/O hub between them does not support it"; break;
        case 4: out.no_access = "it is disabled by a registry key of the driver"; break;
        case 5: out.no_access = "it is not supported"; break;
        default: break;
      }
    }
    int status = 0;
    if (f_.access && f_.access(at_a, at_b, kAccessNvLink, &status) == kOk) {
      out.nvlink = status == kAccessGranted;
    }
    return out;
  }

  const std::string name_;
  Mutex mutex_;
  std::optional<Symbols> library_;
  bool initialised_ = false;
  Functions f_{};
};

}  // namespace

NvmlAnswer ask_nvml(const std::string& library) {
  static Mutex mutex;
  static std::map<std::string, std::unique_ptr<Library>> loaded;
  Library* chosen = nullptr;
  {
    const Lock lock(mutex);
    auto& place = loaded[library];
    if (!place) place = std::make_unique<Library>(library);
    chosen = place.get();
  }
  return chosen->ask();
}

}  // namespace mc::topo
