#include "topo/discover/hwloc_view.h"

#include <hwloc.h>

#include <algorithm>

namespace mc::topo {
namespace {

struct Topology {  // owns the hwloc handle
  hwloc_topology_t handle = nullptr;
  Topology() = default;
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;
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

std::vector<NumaNode> nodes_of(hwloc_topology_t topology) {
  std::vector<NumaNode> nodes;
  for (hwloc_obj_t o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, nullptr); o;
       o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, o)) {
    NumaNode node{.id = static_cast<int>(o->os_index),
                  .cpus = {},
                  .memory_bytes = o->attr->numanode.local_memory};
    for (int cpu = hwloc_bitmap_first(o->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(o->cpuset, cpu)) {
      node.cpus.push_back(cpu);
    }
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
}

PciFunctions functions_of(hwloc_topology_t topology) {
  PciFunctions functions;
  for (hwloc_obj_t o = hwloc_get_next_pcidev(topology, nullptr); o;
       o = hwloc_get_next_pcidev(topology, o)) {
    const auto& pci = o->attr->pcidev;
    PciFunction function;
    function.at.pci = pci_address(pci);
    function.at.bridges = bridges_above(o);
    function.class_code = static_cast<uint32_t>(pci.class_id) << 8;
    function.vendor = pci.vendor_id;
    function.device = pci.device_id;
    functions.emplace(function.at.pci, std::move(function));
  }
  return functions;
}

}  // namespace

Result<HwlocView> hwloc_live() {
  Topology topology;
  if (hwloc_topology_init(&topology.handle) != 0) return fail_errno("hwloc: start");
  hwloc_topology_set_io_types_filter(topology.handle, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology.handle) != 0) {
    return fail(Code::kUnsupported,
                "hwloc cannot read this machine: try --sysfs /sys, and unset HWLOC_XMLFILE and "
                "HWLOC_COMPONENTS if they are set");
  }
  return HwlocView{nodes_of(topology.handle), functions_of(topology.handle)};
}

}  // namespace mc::topo
