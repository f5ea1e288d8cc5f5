#include "topo/discover.h"

#include <arpa/inet.h>
#include <hwloc.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <map>
#include <memory>

#include "topo/sysfs.h"

namespace mc::topo {
namespace {

constexpr uint32_t kNvidia = 0x10de, kAmd = 0x1002, kIntel = 0x8086;

const char* vendor_name(uint32_t vendor) {
  switch (vendor) {
    case kNvidia: return "NVIDIA";
    case kAmd: return "AMD";
    case kIntel: return "Intel";
    default: return "vendor";
  }
}

// 3D controllers, AMD's "other display" and accelerators. A VGA controller counts only when its
// vendor builds compute GPUs: servers have a small one for the console.
bool is_gpu(const PciFunction& f) {
  const uint32_t kind = f.class_code >> 8;
  if (kind == 0x0302) return true;
  if (kind == 0x0300) return f.vendor == kNvidia || f.vendor == kAmd;
  if (kind == 0x0380 || kind == 0x1200) {
    return f.vendor == kNvidia || f.vendor == kAmd || f.vendor == kIntel;
  }
  return false;
}

// What live and recorded machines share once nodes and PCI functions are known.
Machine assemble(std::string source, std::vector<NumaNode> nodes, PciFunctions functions,
                 const Sysfs& sysfs) {
  Machine machine;
  machine.source = std::move(source);
  for (auto& [address, function] : functions) {
    if (nodes.size() == 1 && function.at.numa == kUnknownNode) function.at.numa = nodes[0].id;
    if (!is_gpu(function)) continue;
    machine.gpus.push_back({.name = strf("%s %04x:%04x", vendor_name(function.vendor),
                                         function.vendor, function.device),
                            .at = function.at});
  }
  machine.rdma = sysfs.rdma_devices(functions);
  machine.nets = sysfs.net_devices(functions);
  machine.nodes = std::move(nodes);
  return machine;
}

struct Topology {  // owns the hwloc handle
  hwloc_topology_t handle = nullptr;
  ~Topology() {
    if (handle) hwloc_topology_destroy(handle);
  }
};

std::string pci_address(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  return strf("%04x:%02x:%02x.%x", static_cast<unsigned>(pci.domain), pci.bus, pci.dev, pci.func);
}

// Parents by hand: hwloc_get_common_ancestor_obj may crash on I/O objects of unequal depth.
std::vector<std::string> bridges_above(hwloc_obj_t object) {
  std::vector<std::string> bridges;
  for (hwloc_obj_t up = object->parent; up; up = up->parent) {
    if (up->type != HWLOC_OBJ_BRIDGE) continue;
    const auto& bridge = up->attr->bridge;
    if (bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) {
      bridges.push_back(pci_address(bridge.upstream.pci));
    } else {
      bridges.push_back(strf("pci%04x:%02x", static_cast<unsigned>(bridge.downstream.pci.domain),
                             bridge.downstream.pci.secondary_bus));
    }
  }
  std::reverse(bridges.begin(), bridges.end());
  return bridges;
}

PciFunctions hwloc_pci(hwloc_topology_t topology, const Sysfs& sysfs) {
  PciFunctions functions;
  for (hwloc_obj_t o = hwloc_get_next_pcidev(topology, nullptr); o;
       o = hwloc_get_next_pcidev(topology, o)) {
    const auto& pci = o->attr->pcidev;
    PciFunction function;
    function.at = {.pci = pci_address(pci), .numa = kUnknownNode, .bridges = bridges_above(o)};
    function.at.numa = sysfs.numa_node("bus/pci/devices/" + function.at.pci);
    function.class_code = static_cast<uint32_t>(pci.class_id) << 8;
    function.vendor = pci.vendor_id;
    function.device = pci.device_id;
    functions.emplace(function.at.pci, std::move(function));
  }
  return functions;
}

// hwloc gives a memory-only node the CPUs near it; the kernel's list tells them apart.
Result<std::vector<NumaNode>> hwloc_nodes(hwloc_topology_t topology, const Sysfs& sysfs) {
  MC_TRY(const auto of_kernel, sysfs.numa_nodes());
  std::vector<NumaNode> nodes;
  for (hwloc_obj_t o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, nullptr); o;
       o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, o)) {
    NumaNode node{.id = static_cast<int>(o->os_index),
                  .cpus = {},
                  .memory_bytes = o->attr->numanode.local_memory};
    const auto known = std::find_if(of_kernel.begin(), of_kernel.end(),
                                    [&](const NumaNode& n) { return n.id == node.id; });
    for (int cpu = hwloc_bitmap_first(o->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(o->cpuset, cpu)) {
      if (known == of_kernel.end() ||
          std::binary_search(known->cpus.begin(), known->cpus.end(), cpu)) {
        node.cpus.push_back(cpu);
      }
    }
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
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

}  // namespace

Result<Machine> discover_live() {
  MC_TRY(const Sysfs sysfs, Sysfs::open("/sys"));
  Topology topology;
  if (hwloc_topology_init(&topology.handle) != 0) return fail_errno("hwloc: start");
  hwloc_topology_set_io_types_filter(topology.handle, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology.handle) != 0) {
    return fail(Code::kUnsupported,
                "hwloc cannot read this machine: try --sysfs /sys, and unset HWLOC_XMLFILE and "
                "HWLOC_COMPONENTS if they are set");
  }
  MC_TRY(auto nodes, hwloc_nodes(topology.handle, sysfs));
  Machine machine = assemble("live", std::move(nodes), hwloc_pci(topology.handle, sysfs), sysfs);
  add_addresses(machine.nets);
  return machine;
}

Result<Machine> discover_sysfs(const std::string& folder) {
  MC_TRY(const Sysfs sysfs, Sysfs::open(folder));
  MC_TRY(auto nodes, sysfs.numa_nodes());
  return assemble(folder, std::move(nodes), sysfs.pci_functions(), sysfs);
}

}  // namespace mc::topo
