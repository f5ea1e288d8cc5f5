// Arranges a machine as a tree for rendering: NUMA nodes, bridges, devices.
//
// Thread: values. Pure: a function of the Machine.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "topo/model/model.h"

namespace mc::topo {

struct Leaf {
  enum class Kind { kGpu, kRdma, kNet, kDisk };
  Kind kind;
  size_t index;  // into the Machine's list of that kind
};
const DeviceLocation& location_of(const Machine& machine, const Leaf& leaf);

// One level of the PCI tree: bridges by name, and the devices that hang right here.
struct Branch {
  std::map<std::string, Branch> bridges;
  std::vector<Leaf> leaves;
};

struct NodeTree {
  int node = kUnknownNode;
  const NumaNode* known = nullptr;  // nullptr: devices name a node that the kernel does not list
  Branch devices;
};

// Nodes in the machine's order, then those that only devices name. Points into `machine`.
std::vector<NodeTree> trees_of(const Machine& machine);

// A chain of bridges that leads to one place, as one: its names, and where it ends.
struct Chain {
  std::vector<std::string> names;
  const Branch* end;
};
Chain chain_from(const std::string& name, const Branch& branch);

}  // namespace mc::topo
