// Ranks RDMA devices for each memory: three tiers per GPU and NUMA node. Nodes without CPUs have no
// tiers.
//
// For a GPU, let L be the usable RDMA devices of its NUMA node. Tier 1 is those of L whose deepest
// PCI ancestor shared with the GPU (a bridge or the host bridge) is deepest; tier 2 the rest of L;
// tier 3 every other device. When nothing of L shares a bridge with the GPU, all of L is tier 1.
// For a NUMA node, tier 1 is its own devices, tier 2 is empty, tier 3 the others. NUMA comes first:
// a device of another socket is never tier 1, however short its path.
//
// Left out, with the reason: a device without an active port, and one that has neither a PCI
// address nor a NUMA node (software RDMA). A node unknown to the kernel (-1) equals only itself: a
// GPU and a NIC that both lack one are ranked by their bridges. Devices keep the machine's order.
//
// Thread: any. Pure: a function of the Machine. Source: Mooncake FAST'25, topology-aware path
// selection; TENT, device tiers.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "topo/model/model.h"

namespace mc::topo {

using Tiers = std::array<std::vector<std::string>, 3>;  // names of RDMA devices, tier 1 first

struct GpuTiers {
  size_t gpu = 0;  // index into Machine::gpus
  Tiers tiers;
  std::string bridge;  // the deepest one shared with tier 1; "" when none is shared
};

struct NodeTiers {
  int node = 0;
  Tiers tiers;
};

struct LeftOut {
  std::string name, why;
};

struct TierTable {
  std::vector<GpuTiers> gpus;
  std::vector<NodeTiers> nodes;  // those with CPUs
  std::vector<int> memory_only_nodes;
  std::vector<LeftOut> left_out;
};

TierTable tier_table(const Machine& machine);
// The GPU whose tier 1, by a bridge, this device is in: "gpu 3". "": of none, or of several.
std::string nearest_gpu(const TierTable& table, const std::string& device);

}  // namespace mc::topo
