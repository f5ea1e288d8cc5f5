// Compares two machines, or one machine at two times. It reports devices that came or went, facts
// that changed, and the tiers that changed with them.
//
// Devices are the same when they have the same name (RDMA, net, disk), PCI address (GPU) or id
// (NUMA node). Facts that one side does not know are not compared.
//
// Thread: any. Pure: a function of the machines.
#pragma once
#include <string>
#include <vector>

#include "topo/model/model.h"

namespace mc::topo {

struct Change {
  std::string device;         // "rdma mlx5_0", "gpu 0000:0c:00.0", "node 1"
  std::string fact;           // "port 1 state"; "" when the device itself came or went
  std::string before, after;  // "" : not there
};

std::vector<Change> differences(const Machine& before, const Machine& after);
std::string changes_text(const std::vector<Change>& changes);

}  // namespace mc::topo
