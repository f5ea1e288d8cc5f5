#include "topo/discover/discover.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "io/file.h"
#include "topo/discover/assemble.h"
#include "topo/discover/nvml_record.h"
#include "topo/discover/sysfs.h"
#include "topo/formats/hwloc_xml.h"
#include "topo/formats/nccl_xml.h"
#include "topo/model/gpu_links.h"
#include "topo/model/limits.h"

namespace mc::topo {
namespace {

// A device whose node is unknown is on the only node there is.
void put_on_only_node(Machine& machine) {
  if (machine.nodes.size() != 1) return;
  const auto put = [&](auto& devices) {
    for (auto& device : devices) {
      if (!device.at.pci.empty() && device.at.numa == kUnknownNode) {
        device.at.numa = machine.nodes[0].id;
      }
    }
  };
  put(machine.gpus);
  put(machine.rdma);
  put(machine.nets);
  put(machine.disks);
}

}  // namespace

Machine assemble(std::string source, std::vector<NumaNode> nodes, const PciFunctions& functions,
                 const Sysfs& sysfs, const std::optional<NvmlAnswer>& nvml) {
  Machine machine;
  machine.source = std::move(source);
  for (const auto& [address, function] : functions) {
    if (!is_gpu(function)) continue;
    machine.gpus.push_back({.name = gpu_name(function),
                            .at = function.at,
                            .driver = sysfs.driver("bus/pci/devices/" + address)});
  }
  if (nvml) add_links(machine, *nvml);
  machine.rdma = sysfs.rdma_devices(functions);
  machine.nets = sysfs.net_devices(functions);
  machine.disks = sysfs.disks(functions);
  machine.nodes = std::move(nodes);
  put_on_only_node(machine);
  return machine;
}

void add_addresses(std::vector<NetDevice>& devices) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;  // devices stay listed, without addresses
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    const auto device = std::find_if(devices.begin(), devices.end(),
                                     [&](const NetDevice& d) { return d.name == entry->ifa_name; });
    if (device == devices.end()) continue;
    device->up = (entry->ifa_flags & IFF_RUNNING) != 0;
    if (!entry->ifa_addr) continue;
    const int family = entry->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) {
      address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      address = &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    }
    char text[INET6_ADDRSTRLEN];
    if (address && inet_ntop(family, address, text, sizeof(text))) {
      device->addresses.emplace_back(text);
    }
  }
}

Result<Machine> discover_kernel() {
  MC_TRY(const Sysfs sysfs, Sysfs::open("/sys"));
  MC_TRY(auto nodes, sysfs.numa_nodes());
  Machine machine = assemble("live", std::move(nodes), sysfs.pci_functions(), sysfs, ask_nvml());
  add_addresses(machine.nets);
  return machine;
}

Result<Machine> discover_sysfs(const std::string& folder) {
  MC_TRY(const Sysfs sysfs, Sysfs::open(folder));
  MC_TRY(auto nodes, sysfs.numa_nodes());
  std::optional<NvmlAnswer> nvml;
  if (sysfs.root() != "/sys") {
    MC_TRY(nvml, recorded_nvml(sysfs.root()));
  }
  Machine machine = assemble(folder, std::move(nodes), sysfs.pci_functions(), sysfs, nvml);
  MC_TRY_(check_limits(machine, folder));
  return machine;
}

Result<Machine> discover_xml(const std::string& file) {
  std::error_code error;
  if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error)) {
    return fail(Code::kInvalid, "%s: not a regular file: give an XML file", file.c_str());
  }
  MC_TRY(const std::string text, io::read_file(file, kXmlBytesMax));
  return machine_from_xml(text, file);
}

Result<Machine> machine_from_xml(std::string_view text, const std::string& where) {
  MC_TRY(const XmlElement root, parse_xml(text, where));
  if (root.name == "topology") {
    MC_TRY(Machine machine, machine_from_hwloc(root, where));
    MC_TRY_(check_limits(machine, where));
    put_on_only_node(machine);
    return machine;
  }
  if (root.name == "system") {
    MC_TRY(Machine machine, machine_from_nccl(root, where));
    MC_TRY_(check_limits(machine, where));
    put_on_only_node(machine);
    return machine;
  }
  return fail(Code::kInvalid,
              "%s: the root element is <%s>: give hwloc XML (<topology>, made by lstopo) or NCCL "
              "topology XML (<system>, made with NCCL_TOPO_DUMP_FILE)",
              where.c_str(), root.name.substr(0, 40).c_str());
}

}  // namespace mc::topo
