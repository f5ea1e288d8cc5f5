#include "topo/report/render.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/result.h"
#include "base/text.h"
#include "base/units.h"
#include "topo/model/gpu_links.h"
#include "topo/model/numbers.h"
#include "topo/model/tree.h"

namespace mc::topo {
namespace {

// "PCIe 32 GT/s x16", with what it could be when that is more; "" when unknown.
std::string link_text(const PciLink& link) {
  if (link.width == 0) return "";
  std::string out = strf(", PCIe %g GT/s x%u", link.gt_per_s, link.width);
  if (link.width < link.width_max || link.gt_per_s < link.gt_per_s_max) {
    out += strf(" of %g GT/s x%u", link.gt_per_s_max, link.width_max);
  }
  return out;
}

std::string rdma_line(const RdmaDevice& device) {
  std::string line = strf("rdma %s", device.name.c_str());
  for (const Port& port : device.ports) {
    line += strf(", port %d %s", port.number, port.state.empty() ? "?" : port.state.c_str());
    if (!port.link_layer.empty()) line += " " + port.link_layer;
    if (!port.rate.empty()) line += " " + port.rate;
  }
  return line + link_text(device.at.link);
}

// "xGMI x2 to gpu 1,3", "NVLink 4 x18 through switches to gpu 1-7"; peers that are not here are not
// named.
std::string peers_text(const std::map<std::string, size_t>& numbers, const Gpu& gpu) {
  std::map<std::string, std::vector<int>> of_kind;
  for (const GpuPeer& peer : gpu.peers) {
    std::string kind = peer.type;
    if (peer.generation > 0) kind += strf(" %u", peer.generation);
    kind += strf(" x%u", peer.links);
    if (peer.switched) kind += " through switches";
    const auto number = numbers.find(peer.pci);
    if (number != numbers.end()) of_kind[kind].push_back(static_cast<int>(number->second));
  }
  std::string out;
  for (auto& [kind, gpus] : of_kind) {
    std::sort(gpus.begin(), gpus.end());
    out += ", " + kind + " to gpu " + ranges(gpus);
  }
  if (gpu.nvlinks_active < gpu.nvlinks) {
    out += strf(", %u of %u NVLinks down", gpu.nvlinks - gpu.nvlinks_active, gpu.nvlinks);
  }
  return out + (gpu.trouble.empty() ? "" : ", in trouble: " + gpu.trouble);
}

std::string disk_line(const Disk& disk) {
  std::string line = "disk " + disk.name;
  if (!disk.model.empty()) line += ", " + disk.model;
  if (disk.bytes > 0) line += ", " + rounded_bytes_text(disk.bytes);
  return line + link_text(disk.at.link);
}

std::string net_line(const NetDevice& device) {
  std::string line = strf("net %s, %s", device.name.c_str(), device.up ? "up" : "down");
  if (device.speed_mbit > 0) {
    line += strf(", %s Gb/s", number_text(static_cast<double>(device.speed_mbit) / 1000).c_str());
  }
  if (!device.addresses.empty()) line += ", " + join(device.addresses, " ");
  return line;
}

// Prints the tree of one node.
class TreePrinter {
 public:
  TreePrinter(const Machine& machine, std::string& out)
      : machine_(machine), numbers_(gpu_numbers(machine)), out_(out) {}

  void print(const Branch& branch, const std::string& indent) {
    size_t left = branch.leaves.size() + branch.bridges.size();
    const auto item = [&](const std::string& text) {
      out_ += indent + (--left > 0 ? "├─ " : "└─ ") + text + "\n";
      return indent + (left > 0 ? "│  " : "   ");
    };
    for (const Leaf& leaf : branch.leaves) item(line(leaf));
    for (const auto& [name, child] : branch.bridges) {
      const Chain chain = chain_from(name, child);
      print(*chain.end, item(join(chain.names, " > ")));
    }
  }

 private:
  std::string line(const Leaf& leaf) const {
    const std::string& pci = location_of(machine_, leaf).pci;
    const std::string lead = pci.empty() ? "" : pci + "  ";
    switch (leaf.kind) {
      case Leaf::Kind::kGpu: {
        const Gpu& gpu = machine_.gpus[leaf.index];
        return lead + strf("gpu %zu, %s", leaf.index, gpu.name.c_str()) + link_text(gpu.at.link) +
               peers_text(numbers_, gpu);
      }
      case Leaf::Kind::kRdma: return lead + rdma_line(machine_.rdma[leaf.index]);
      case Leaf::Kind::kNet: return lead + net_line(machine_.nets[leaf.index]);
      default: return lead + disk_line(machine_.disks[leaf.index]);
    }
  }

  const Machine& machine_;
  const std::map<std::string, size_t> numbers_;
  std::string& out_;
};

void print_tiers(const Tiers& tiers, const std::array<std::string, 3>& why, std::string& out) {
  for (size_t i = 0; i < tiers.size(); ++i) {
    const std::string names = tiers[i].empty() ? "-" : join(tiers[i], " ");
    out += strf("  tier %zu  %s%s\n", i + 1, names.c_str(),
                tiers[i].empty() ? "" : ("  (" + why[i] + ")").c_str());
  }
}

std::string node_name(int node) {
  return node == kUnknownNode ? "an unknown node" : strf("node %d", node);
}

}  // namespace

std::string machine_text(const Machine& machine) {
  std::string out = strf(
      "%s: NUMA nodes %zu, GPUs %zu, RDMA devices %zu, network devices %zu, "
      "NVMe disks %zu\n",
      machine.source.c_str(), machine.nodes.size(), machine.gpus.size(), machine.rdma.size(),
      machine.nets.size(), machine.disks.size());
  TreePrinter printer(machine, out);
  for (const NodeTree& tree : trees_of(machine)) {
    if (tree.known) {
      out += strf("node %d: ", tree.node);
      out += tree.known->cpus.empty() ? "memory only" : "cpus " + ranges(tree.known->cpus);
      if (tree.known->memory_bytes > 0) out += ", " + rounded_bytes_text(tree.known->memory_bytes);
      out += "\n";
    } else if (tree.node == kUnknownNode) {
      out += "no NUMA node known:\n";
    } else {
      out += strf("node %d, which the kernel does not list:\n", tree.node);
    }
    printer.print(tree.devices, "");
  }
  out += gpu_matrix_text(machine);
  if (!machine.nvml.empty()) out += "NVML: " + machine.nvml + "\n";
  return out;
}

std::string tiers_text(const Machine& machine, const TierTable& table) {
  std::string out;
  for (const GpuTiers& row : table.gpus) {
    const Gpu& gpu = machine.gpus[row.gpu];
    const std::string node = node_name(gpu.at.numa);
    out += strf("gpu %zu  %s, %s\n", row.gpu, gpu.at.pci.c_str(), node.c_str());
    const std::string first = row.bridge.empty() ? node + ", none shares a bridge with the GPU"
                                                 : node + ", nearest by PCI: below " + row.bridge;
    print_tiers(row.tiers, {first, node + ", farther by PCI", "of another node"}, out);
  }
  for (const NodeTiers& row : table.nodes) {
    out += strf("node %d\n", row.node);
    print_tiers(row.tiers, {node_name(row.node), "", "of another node"}, out);
  }
  if (!table.memory_only_nodes.empty()) {
    out += "memory-only nodes  " + ranges(table.memory_only_nodes) + "\n";
  }
  for (const LeftOut& device : table.left_out) {
    out += strf("left out  %s: %s\n", device.name.c_str(), device.why.c_str());
  }
  if (machine.rdma.empty()) {
    out += "no RDMA devices on this machine: transfers use shared memory and TCP\n";
  }
  return out;
}

std::string matrix_text(const Machine& machine, const TierTable& table) {
  if (table.gpus.empty() && table.nodes.empty()) return "no location has a NIC\n";
  std::vector<std::string> names;
  for (const RdmaDevice& device : machine.rdma) names.push_back(device.name);
  size_t widest = 4;
  for (const std::string& name : names) widest = std::max(widest, name.size());
  // Columns by number when names would not fit a screen.
  const bool numbered = names.size() * (widest + 2) > 100;
  const size_t width = numbered ? 4 : widest + 2;
  std::string out = strf("%-10s", "");
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string head = numbered ? std::to_string(i) : names[i];
    out += strf("%*s", static_cast<int>(width), head.c_str());
  }
  out += "\n";
  const auto row = [&](const std::string& location, const Tiers& tiers) {
    out += strf("%-10s", location.c_str());
    for (const std::string& name : names) {
      std::string cell = "-";
      for (size_t tier = 0; tier < tiers.size(); ++tier) {
        if (std::find(tiers[tier].begin(), tiers[tier].end(), name) != tiers[tier].end()) {
          cell = std::to_string(tier + 1);
        }
      }
      out += strf("%*s", static_cast<int>(width), cell.c_str());
    }
    out += "\n";
  };
  for (const NodeTiers& node : table.nodes) row("cpu:" + std::to_string(node.node), node.tiers);
  for (const GpuTiers& gpu : table.gpus) row("cuda:" + std::to_string(gpu.gpu), gpu.tiers);
  for (size_t i = 0; numbered && i < names.size(); ++i) {
    out += strf("%s%zu = %s", i % 6 == 0 ? "\n" : "  ", i, names[i].c_str());
  }
  if (numbered) out += "\n";
  out += "\n1: same switch or nearest  2: same NUMA node  3: another node  -: not usable\n";
  const std::string links = gpu_matrix_text(machine);
  if (!links.empty()) out += "\n" + links;
  return out;
}

}  // namespace mc::topo
