// Reads NUMA nodes and the PCI tree of the live machine from hwloc.
//
// Nodes have the CPUs near them (a memory-only node too). Devices have no NUMA node yet: hwloc
// takes locality from local_cpus, and the kernel's numa_node is preferred
// (topo/discover/discover.h).
//
// Thread: any.
#pragma once
#include <vector>

#include "base/result.h"
#include "topo/model/model.h"
#include "topo/model/pci.h"

namespace mc::topo {

struct HwlocView {
  std::vector<NumaNode> nodes;
  PciFunctions functions;
};

Result<HwlocView> hwloc_live();

}  // namespace mc::topo
