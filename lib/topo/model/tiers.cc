#include "topo/model/tiers.h"

#include <algorithm>

namespace mc::topo {
namespace {

// A software device (rxe, siw) has neither address nor node: nothing ranks it.
bool placed(const RdmaDevice& device) {
  return !device.at.pci.empty() || device.at.numa != kUnknownNode;
}

bool usable(const RdmaDevice& device) {
  return placed(device) && std::any_of(device.ports.begin(), device.ports.end(),
                                       [](const Port& port) { return port.active(); });
}

std::string why_left_out(const RdmaDevice& device) {
  if (!placed(device)) return "no PCI device and no NUMA node: it is near to nothing";
  if (device.ports.empty()) return "it has no port";
  std::string why = "no active port (";
  for (const Port& port : device.ports) {
    if (&port != &device.ports.front()) why += ", ";
    why += "port " + std::to_string(port.number) + " is " +
           (port.state.empty() ? "in an unknown state" : port.state);
  }
  return why + ")";
}

// How many bridges, from the root down, two devices have in common.
size_t shared_depth(const DeviceLocation& a, const DeviceLocation& b) {
  const auto [end, other] =
      std::mismatch(a.bridges.begin(), a.bridges.end(), b.bridges.begin(), b.bridges.end());
  return static_cast<size_t>(end - a.bridges.begin());
}

GpuTiers gpu_tiers(const Machine& machine, size_t index,
                   const std::vector<const RdmaDevice*>& devices) {
  const DeviceLocation& at = machine.gpus[index].at;
  size_t deepest = 0;
  for (const RdmaDevice* device : devices) {
    if (device->at.numa == at.numa) deepest = std::max(deepest, shared_depth(at, device->at));
  }
  GpuTiers out{.gpu = index, .tiers = {}, .bridge = {}};
  if (deepest > 0) out.bridge = at.bridges[deepest - 1];
  for (const RdmaDevice* device : devices) {
    const bool local = device->at.numa == at.numa;
    const bool nearest = local && shared_depth(at, device->at) == deepest;
    out.tiers[nearest ? 0 : local ? 1 : 2].push_back(device->name);
  }
  return out;
}

}  // namespace

TierTable tier_table(const Machine& machine) {
  TierTable table;
  std::vector<const RdmaDevice*> devices;
  for (const RdmaDevice& device : machine.rdma) {
    if (usable(device)) {
      devices.push_back(&device);
    } else {
      table.left_out.push_back({device.name, why_left_out(device)});
    }
  }
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    table.gpus.push_back(gpu_tiers(machine, i, devices));
  }
  for (const NumaNode& node : machine.nodes) {
    if (node.cpus.empty()) {
      table.memory_only_nodes.push_back(node.id);
      continue;
    }
    NodeTiers row{.node = node.id, .tiers = {}};
    for (const RdmaDevice* device : devices) {
      row.tiers[device->at.numa == node.id ? 0 : 2].push_back(device->name);
    }
    table.nodes.push_back(std::move(row));
  }
  return table;
}

std::string nearest_gpu(const TierTable& table, const std::string& device) {
  std::string found;
  for (const GpuTiers& gpu : table.gpus) {
    const auto& first = gpu.tiers[0];
    if (gpu.bridge.empty() || std::find(first.begin(), first.end(), device) == first.end())
      continue;
    if (!found.empty()) return "";
    found = "gpu " + std::to_string(gpu.gpu);
  }
  return found;
}

}  // namespace mc::topo
