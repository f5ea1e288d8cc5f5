#include "xfer/rails/nic_tiers.h"

#include "topo/model/pci.h"
#include "topo/model/tiers.h"

namespace mc::xfer {

NicTiers::NicTiers(const topo::Machine& machine) {
  for (size_t i = 0; i < machine.gpus.size(); ++i)
    gpus_[machine.gpus[i].at.pci] = {machine.gpus[i].at.numa, static_cast<int>(i)};
  const topo::TierTable table = topo::tier_table(machine);
  for (const topo::RdmaDevice& device : machine.rdma)
    beside_[device.name] = topo::nearest_gpu(table, device.name);
  for (const topo::GpuTiers& row : table.gpus)
    for (size_t t = 0; t < row.tiers.size(); ++t)
      for (const std::string& nic : row.tiers[t]) {
        auto& of_nic = tiers_[nic];
        of_nic.resize(machine.gpus.size());
        of_nic[row.gpu] = static_cast<uint8_t>(t + 1);
      }
}

MemoryLocation NicTiers::gpu(const std::string& pci) const {
  const auto known = gpus_.find(topo::kernel_pci_address(pci).value_or(pci));
  return known == gpus_.end() ? MemoryLocation{} : known->second;
}

std::vector<uint8_t> NicTiers::of(const std::string& nic) const {
  const auto known = tiers_.find(nic);
  return known == tiers_.end() ? std::vector<uint8_t>() : known->second;
}

std::string NicTiers::gpu_beside(const std::string& nic) const {
  const auto known = beside_.find(nic);
  return known == beside_.end() ? std::string() : known->second;
}

}  // namespace mc::xfer
