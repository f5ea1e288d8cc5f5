#include "topo/discover/host.h"

#include <sys/resource.h>

#include <filesystem>

#include "io/file.h"
#include "topo/discover/sysfs.h"
#include "topo/model/numbers.h"

namespace mc::topo {
namespace {
namespace fs = std::filesystem;

constexpr size_t kProcBytesMax = 1u << 20;

std::string proc_text(const std::string& proc, const char* file) {
  std::error_code error;
  const std::string path = proc + "/" + file;
  if (!fs::exists(path, error)) return "";
  auto text = io::read_file(path, kProcBytesMax);
  if (!text) return "";
  while (!text->empty() && (text->back() == '\n' || text->back() == '\0')) text->pop_back();
  return *text;
}

// "Max locked memory         8388608              8388608              bytes"
std::optional<uint64_t> memlock_of(const std::string& limits) {
  const size_t line = limits.find("Max locked memory");
  if (line == std::string::npos) return std::nullopt;
  const size_t first = limits.find_first_not_of(' ', line + 17);
  if (first == std::string::npos) return std::nullopt;
  const std::string word = limits.substr(first, limits.find_first_of(" \n", first) - first);
  if (word == "unlimited") return kUnlimited;
  return parse_number(word);
}

std::vector<HugePages> huge_pages_of(const Sysfs& sysfs) {
  std::vector<HugePages> out;
  const std::string folder = "kernel/mm/hugepages";
  for (const std::string& name : sysfs.names(folder)) {  // "hugepages-2048kB"
    if (!name.starts_with("hugepages-") || !name.ends_with("kB")) continue;
    const auto kib = parse_number(name.substr(10, name.size() - 12));
    const auto number = [&](const char* file) {
      return parse_number(sysfs.text(folder + "/" + name + "/" + file).value_or("")).value_or(0);
    };
    if (!kib) continue;
    out.push_back({.page_bytes = *kib << 10,
                   .total = number("nr_hugepages"),
                   .free = number("free_hugepages")});
  }
  return out;
}

Host host_of(const Sysfs& sysfs, const std::string& proc) {
  Host host;
  host.memlock_bytes = memlock_of(proc_text(proc, "self/limits"));
  host.kernel = proc_text(proc, "sys/kernel/osrelease");
  host.command_line = proc_text(proc, "cmdline");
  host.huge_pages = huge_pages_of(sysfs);
  const auto modules = sysfs.names("module");
  if (!modules.empty()) host.modules.emplace(modules.begin(), modules.end());
  if (sysfs.real_path("kernel/iommu_groups")) {
    host.iommu_groups = sysfs.names("kernel/iommu_groups").size();
  }
  for (const std::string& name : sysfs.names("class/infiniband_verbs")) {
    const auto device = sysfs.text("class/infiniband_verbs/" + name + "/ibdev");
    if (device) host.uverbs.insert(*device);
  }
  for (const auto& [address, function] : sysfs.pci_functions()) {
    const std::string base = "bus/pci/devices/" + address;
    const uint32_t kind = function.class_code >> 8;
    if (kind == 0x0604 && acs_redirects_in(sysfs.bytes(base + "/config"))) {
      host.acs_redirects.insert(address);
    }
    // InfiniBand and fabric controllers; Mellanox calls its Ethernet ones Ethernet.
    const bool fabric = kind == 0x0207 || kind == 0x0208;
    const bool mellanox = kind == 0x0200 && function.vendor == 0x15b3;
    if ((fabric || mellanox) && sysfs.names(base + "/infiniband").empty()) {
      host.unclaimed.push_back({address, sysfs.driver(base), function.vendor, function.device});
    }
  }
  return host;
}

}  // namespace

Result<Host> host_live() {
  MC_TRY(const Sysfs sysfs, Sysfs::open("/sys"));
  Host host = host_of(sysfs, "/proc");
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    host.memlock_bytes =
        limit.rlim_cur == RLIM_INFINITY ? kUnlimited : static_cast<uint64_t>(limit.rlim_cur);
  }
  return host;
}

Result<Host> host_sysfs(const std::string& folder) {
  MC_TRY(const Sysfs sysfs, Sysfs::open(folder));
  return host_of(sysfs, (fs::path(sysfs.root()).parent_path() / "proc").string());
}

// Extended capabilities start at 0x100, each a word of id, version and next. Reading them needs
// root; without it the file ends at 64 bytes.
bool acs_redirects_in(const std::string& config) {
  const auto byte = [&](size_t at) {
    return static_cast<uint32_t>(static_cast<uint8_t>(config[at]));
  };
  size_t at = 0x100;
  for (int hops = 0; hops < 64 && at >= 0x100 && at + 8 <= config.size(); ++hops) {
    const uint32_t header = byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24;
    if ((header & 0xffff) == 0x000d) {
      const uint32_t control = byte(at + 6) | byte(at + 7) << 8;
      return (control & 0x001c) != 0;  // request, completion and upstream redirection
    }
    at = header >> 20;
  }
  return false;
}

}  // namespace mc::topo
