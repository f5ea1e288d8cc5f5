#include "topo/render.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/result.h"
#include "base/units.h"
#include "topo/numbers.h"

namespace mc::topo {
namespace {

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += separator;
    out += word;
  }
  return out;
}

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

// "xGMI to gpu 1 (x2), gpu 2 (x1)"; peers that are not here are not named.
std::string peers_text(const Machine& machine, const Gpu& gpu) {
  std::map<std::string, std::string> of_type;
  for (const GpuPeer& peer : gpu.peers) {
    for (size_t i = 0; i < machine.gpus.size(); ++i) {
      if (machine.gpus[i].at.pci != peer.pci) continue;
      std::string& text = of_type[peer.type];
      text += strf("%s%zu (x%u)", text.empty() ? " to gpu " : ", ", i, peer.links);
    }
  }
  std::string out;
  for (const auto& [type, text] : of_type) out += ", " + type + text;
  return out;
}

std::string disk_line(const Disk& disk) {
  std::string line = "disk " + disk.name;
  if (!disk.model.empty()) line += ", " + disk.model;
  if (disk.bytes > 0) line += ", " + human_bytes(disk.bytes);
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

// One level of the PCI tree: bridges by name, then the devices that hang right here.
struct Branch {
  std::map<std::string, Branch> bridges;
  std::vector<std::string> leaves;

  void add(const Place& at, const std::string& line) {
    Branch* branch = this;
    for (const std::string& bridge : at.bridges) branch = &branch->bridges[bridge];
    branch->leaves.push_back(at.pci.empty() ? line : at.pci + "  " + line);
  }
};

void print(const Branch& branch, const std::string& indent, std::string& out) {
  size_t left = branch.leaves.size() + branch.bridges.size();
  const auto item = [&](const std::string& text) {
    out += indent + (--left > 0 ? "├─ " : "└─ ") + text + "\n";
    return indent + (left > 0 ? "│  " : "   ");
  };
  for (const std::string& leaf : branch.leaves) item(leaf);
  for (const auto& [name, child] : branch.bridges) {
    std::string line = name;
    const Branch* end = &child;
    while (end->leaves.empty() && end->bridges.size() == 1) {
      line += " > " + end->bridges.begin()->first;
      end = &end->bridges.begin()->second;
    }
    print(*end, item(line), out);
  }
}

Branch devices_of(const Machine& machine, int node) {
  Branch root;
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    const Gpu& gpu = machine.gpus[i];
    if (gpu.at.numa == node)
      root.add(gpu.at, strf("gpu %zu, %s", i, gpu.name.c_str()) + link_text(gpu.at.link) +
                           peers_text(machine, gpu));
  }
  for (const RdmaDevice& device : machine.rdma) {
    if (device.at.numa == node) root.add(device.at, rdma_line(device));
  }
  for (const NetDevice& device : machine.nets) {
    if (device.at.numa == node) root.add(device.at, net_line(device));
  }
  for (const Disk& disk : machine.disks) {
    if (disk.at.numa == node) root.add(disk.at, disk_line(disk));
  }
  return root;
}

bool has_node(const Machine& machine, int id) {
  for (const NumaNode& node : machine.nodes) {
    if (node.id == id) return true;
  }
  return false;
}

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
  for (const NumaNode& node : machine.nodes) {
    out += strf("node %d: ", node.id);
    out += node.cpus.empty() ? "memory only" : "cpus " + ranges(node.cpus);
    if (node.memory_bytes > 0) out += ", " + human_bytes(node.memory_bytes);
    out += "\n";
    print(devices_of(machine, node.id), "", out);
  }
  // Devices whose node is unknown, or is none of those listed (firmware does say such things).
  std::map<int, Branch> elsewhere;
  const auto note = [&](const Place& at) {
    if (!has_node(machine, at.numa)) elsewhere[at.numa] = devices_of(machine, at.numa);
  };
  for (const Gpu& gpu : machine.gpus) note(gpu.at);
  for (const RdmaDevice& device : machine.rdma) note(device.at);
  for (const NetDevice& device : machine.nets) note(device.at);
  for (const Disk& disk : machine.disks) note(disk.at);
  for (const auto& [node, branch] : elsewhere) {
    out += node == kUnknownNode ? "no NUMA node known:\n"
                                : strf("node %d, which the kernel does not list:\n", node);
    print(branch, "", out);
  }
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
  return out;
}

}  // namespace mc::topo
