// Reads host facts that decide whether RDMA and GPUs work together. These are limits, kernel
// modules, IOMMU and ACS, huge pages, and the kernel itself. Read from the live machine, or from a
// recording (topo/discover/capture.h), which holds proc/ beside sys/.
//
// What a source does not hold is nullopt or empty. A check that needs it is then skipped.
//
// Thread: any; only reads.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "topo/model/model.h"

namespace mc::topo {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

struct HugePages {
  uint64_t page_bytes = 0, total = 0, free = 0;
};

// A PCI function that ought to be an RDMA device, by its class, and is none.
struct Unclaimed {
  std::string pci, driver;  // "" : no driver is bound
  uint32_t vendor = 0, device = 0;
};

struct Host {
  std::optional<uint64_t> memlock_bytes;  // kUnlimited, or the soft limit
  std::optional<std::set<std::string>> modules;
  std::vector<HugePages> huge_pages;
  std::string kernel;        // "6.1.0-18-amd64"
  std::string command_line;  // of the kernel
  std::optional<size_t> iommu_groups;
  std::set<std::string> acs_redirects;  // bridges that send peer-to-peer traffic upwards
  std::set<std::string> uverbs;         // RDMA devices that user space can open
  std::vector<Unclaimed> unclaimed;
  bool recorded_kernel_facts() const { return modules.has_value(); }
};

Result<Host> host_live();
Result<Host> host_sysfs(const std::string& folder);

// True when the bytes of a bridge's config space have ACS redirecting requests or completions.
bool acs_redirects_in(const std::string& config);

}  // namespace mc::topo
