// A table of the tiers of this machine's RDMA devices, as seen from its GPUs. The rule is that of
// topo/model/tiers.h, applied once; slices look the result up.
//
// Thread: any; immutable.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "topo/model/model.h"
#include "xfer/core/memory_location.h"

namespace mc::xfer {

class NicTiers {
 public:
  NicTiers() = default;  // of a machine that tells nothing
  explicit NicTiers(const topo::Machine& machine);
  // Of memory of the GPU at this PCI address, in any spelling; {} where the machine has none there.
  MemoryLocation gpu(const std::string& pci) const;
  // 1 to 3 for each GPU, by its number. Empty for a device that the rule leaves out.
  std::vector<uint8_t> of(const std::string& nic) const;
  // The GPU that the device is beside: "gpu 3"; "" for a device that is beside none.
  std::string gpu_beside(const std::string& nic) const;

 private:
  std::map<std::string, MemoryLocation> gpus_;         // by PCI address
  std::map<std::string, std::vector<uint8_t>> tiers_;  // by device
  std::map<std::string, std::string> beside_;          // by device
};

}  // namespace mc::xfer
