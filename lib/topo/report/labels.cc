#include "topo/report/labels.h"

#include <algorithm>

#include "base/result.h"
#include "base/units.h"
#include "topo/model/numbers.h"

namespace mc::topo {
namespace {

// "tier 1: mlx5_0 mlx5_1", or how many there are when they are many.
std::string first_tier(const TierTable& table, size_t gpu) {
  for (const GpuTiers& row : table.gpus) {
    if (row.gpu != gpu) continue;
    const auto& names = row.tiers[0];
    if (names.empty()) return row.tiers[2].empty() ? "" : "no NIC on its node";
    std::string out = "tier 1: " + names[0];
    if (names.size() == 2) out += " " + names[1];
    if (names.size() > 2) out += strf(" +%zu", names.size() - 1);
    return out;
  }
  return "";
}

// "H100 80GB HBM3": a label has no space for the vendor of a model.
std::string short_name(const std::string& name) {
  constexpr std::string_view kVendor = "NVIDIA ";
  const bool model = name.starts_with(kVendor) && name.find("10de:") == std::string::npos;
  return model ? name.substr(kVendor.size()) : name;
}

DeviceLabel gpu_label(const Machine& machine, const TierTable& table, size_t index) {
  const Gpu& gpu = machine.gpus[index];
  DeviceLabel label{
      strf("GPU %zu", index), {gpu.at.pci + "  " + short_name(gpu.name)}, !gpu.trouble.empty()};
  std::string more = first_tier(table, index);
  if (!gpu.peers.empty()) {
    more +=
        strf("%s%s to %zu", more.empty() ? "" : ", ", gpu.peers[0].type.c_str(), gpu.peers.size());
  }
  if (label.bad) more = gpu.trouble;
  if (!more.empty()) label.lines.push_back(more);
  return label;
}

DeviceLabel rdma_label(const RdmaDevice& device) {
  DeviceLabel label{device.name, {device.at.pci.empty() ? "software" : device.at.pci}, false};
  const bool active = std::any_of(device.ports.begin(), device.ports.end(),
                                  [](const Port& p) { return p.active(); });
  label.bad = !active;
  std::string more;
  for (const Port& port : device.ports) {
    std::string text = port.state == kNotRecorded ? "" : port.state;
    if (!port.rate.empty()) text += (text.empty() ? "" : ", ") + port.rate;
    if (!more.empty() && !text.empty()) more += "; ";
    more += text;
  }
  if (device.ports.empty()) more = "no port";
  if (!more.empty()) label.lines.push_back(more);
  return label;
}

}  // namespace

DeviceLabel label_of(const Machine& machine, const TierTable& table, const Leaf& leaf) {
  switch (leaf.kind) {
    case Leaf::Kind::kGpu: return gpu_label(machine, table, leaf.index);
    case Leaf::Kind::kRdma: return rdma_label(machine.rdma[leaf.index]);
    case Leaf::Kind::kNet: {
      const NetDevice& device = machine.nets[leaf.index];
      DeviceLabel label{device.name, {}, false};
      std::string line = device.at.pci;
      if (device.speed_mbit > 0) {
        line += strf("  %g Gb/s", static_cast<double>(device.speed_mbit) / 1000);
      }
      if (!device.up) line += "  down";
      if (!line.empty()) label.lines.push_back(line);
      return label;
    }
    default: {
      const Disk& disk = machine.disks[leaf.index];
      DeviceLabel label{disk.name, {}, false};
      std::string line = disk.at.pci;
      if (disk.bytes > 0) line += "  " + rounded_bytes_text(disk.bytes);
      if (!line.empty()) label.lines.push_back(line);
      return label;
    }
  }
}

std::string node_title(const NodeTree& tree) {
  if (tree.node == kUnknownNode) return "no NUMA node known";
  std::string out = strf("NUMA node %d", tree.node);
  if (!tree.known) return out + ", not listed by the kernel";
  out += tree.known->cpus.empty() ? ": memory only" : ": CPUs " + ranges(tree.known->cpus);
  if (tree.known->memory_bytes > 0) out += ", " + rounded_bytes_text(tree.known->memory_bytes);
  return out;
}

}  // namespace mc::topo
