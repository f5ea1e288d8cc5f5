// Assembles a machine from what discovery read. For the .cc files of topo/discover/discover.h only.
//
// Thread: any.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "topo/discover/nvml.h"
#include "topo/discover/sysfs.h"
#include "topo/model/model.h"
#include "topo/model/pci.h"

namespace mc::topo {

// The part of discovery that live and recorded machines share, once nodes and PCI functions are
// known. `nvml`: nothing when the source has no answer of NVML.
Machine assemble(std::string source, std::vector<NumaNode> nodes, const PciFunctions& functions,
                 const Sysfs& sysfs, const std::optional<NvmlAnswer>& nvml);

// Adds the addresses and states that this process's network stack reports.
void add_addresses(std::vector<NetDevice>& devices);

}  // namespace mc::topo
