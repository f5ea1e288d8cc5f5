#include "topo/model/tree.h"

namespace mc::topo {

const DeviceLocation& location_of(const Machine& machine, const Leaf& leaf) {
  switch (leaf.kind) {
    case Leaf::Kind::kGpu: return machine.gpus[leaf.index].at;
    case Leaf::Kind::kRdma: return machine.rdma[leaf.index].at;
    case Leaf::Kind::kNet: return machine.nets[leaf.index].at;
    default: return machine.disks[leaf.index].at;
  }
}

std::vector<NodeTree> trees_of(const Machine& machine) {
  std::vector<NodeTree> out;
  for (const NumaNode& node : machine.nodes) out.push_back({node.id, &node, {}});
  const auto tree = [&](int node) -> NodeTree& {
    for (NodeTree& t : out) {
      if (t.node == node) return t;
    }
    return out.emplace_back(NodeTree{node, nullptr, {}});
  };
  const auto add = [&](Leaf::Kind kind, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const Leaf leaf{kind, i};
      const DeviceLocation& at = location_of(machine, leaf);
      Branch* branch = &tree(at.numa).devices;
      for (const std::string& bridge : at.bridges) branch = &branch->bridges[bridge];
      branch->leaves.push_back(leaf);
    }
  };
  add(Leaf::Kind::kGpu, machine.gpus.size());
  add(Leaf::Kind::kRdma, machine.rdma.size());
  add(Leaf::Kind::kNet, machine.nets.size());
  add(Leaf::Kind::kDisk, machine.disks.size());
  return out;
}

Chain chain_from(const std::string& name, const Branch& branch) {
  Chain chain{{name}, &branch};
  while (chain.end->leaves.empty() && chain.end->bridges.size() == 1) {
    chain.names.push_back(chain.end->bridges.begin()->first);
    chain.end = &chain.end->bridges.begin()->second;
  }
  return chain;
}

}  // namespace mc::topo
