#include "topo/render.h"

#include <array>
#include <map>

#include "base/json.h"
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

std::string rdma_line(const RdmaDevice& device) {
  std::string line = strf("rdma %s", device.name.c_str());
  for (const Port& port : device.ports) {
    line += strf(", port %d %s", port.number, port.state.empty() ? "?" : port.state.c_str());
    if (!port.link_layer.empty()) line += " " + port.link_layer;
    if (!port.rate.empty()) line += " " + port.rate;
  }
  return line;
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
    if (gpu.at.numa == node) root.add(gpu.at, strf("gpu %zu, %s", i, gpu.name.c_str()));
  }
  for (const RdmaDevice& device : machine.rdma) {
    if (device.at.numa == node) root.add(device.at, rdma_line(device));
  }
  for (const NetDevice& device : machine.nets) {
    if (device.at.numa == node) root.add(device.at, net_line(device));
  }
  return root;
}

bool has_node(const Machine& machine, int id) {
  for (const NumaNode& node : machine.nodes) {
    if (node.id == id) return true;
  }
  return false;
}

Json place_json(const Place& at, bool bridges) {
  Json out;
  out["pci"] = at.pci.empty() ? Json(nullptr) : Json(at.pci);
  out["numa"] = at.numa == kUnknownNode ? Json(nullptr) : Json(at.numa);
  if (bridges) out["bridges"] = at.bridges;
  return out;
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
  std::string out = strf("%s: NUMA nodes %zu, GPUs %zu, RDMA devices %zu, network devices %zu\n",
                         machine.source.c_str(), machine.nodes.size(), machine.gpus.size(),
                         machine.rdma.size(), machine.nets.size());
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
  for (const auto& [node, branch] : elsewhere) {
    out += node == kUnknownNode ? "no NUMA node known:\n"
                                : strf("node %d, which the kernel does not list:\n", node);
    print(branch, "", out);
  }
  return out;
}

Json machine_json(const Machine& machine) {
  Json out;
  out["source"] = machine.source;
  out["numa_nodes"] = Json::array();
  for (const NumaNode& node : machine.nodes) {
    Json row;
    row["numa"] = node.id;
    row["cpus"] = node.cpus;
    row["memory_bytes"] = node.memory_bytes;
    out["numa_nodes"].push_back(std::move(row));
  }
  out["gpus"] = Json::array();
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    Json row;
    row["index"] = i;
    row["name"] = machine.gpus[i].name;
    row.update(place_json(machine.gpus[i].at, true));
    out["gpus"].push_back(std::move(row));
  }
  out["rdma"] = Json::array();
  for (const RdmaDevice& device : machine.rdma) {
    Json row;
    row["name"] = device.name;
    row.update(place_json(device.at, true));
    row["ports"] = Json::array();
    for (const Port& port : device.ports) {
      Json p;
      p["port"] = port.number;
      p["state"] = port.state;
      p["link_layer"] = port.link_layer;
      p["rate"] = port.rate;
      row["ports"].push_back(std::move(p));
    }
    out["rdma"].push_back(std::move(row));
  }
  out["nets"] = Json::array();
  for (const NetDevice& device : machine.nets) {
    Json row;
    row["name"] = device.name;
    row.update(place_json(device.at, true));
    row["addresses"] = device.addresses;
    row["speed_mbit"] = device.speed_mbit == 0 ? Json(nullptr) : Json(device.speed_mbit);
    row["up"] = device.up;
    out["nets"].push_back(std::move(row));
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

Json tiers_json(const Machine& machine, const TierTable& table) {
  Json out;
  out["nics"] = Json::array();
  for (const RdmaDevice& device : machine.rdma) {
    Json row;
    row["name"] = device.name;
    row.update(place_json(device.at, false));
    out["nics"].push_back(std::move(row));
  }
  out["gpus"] = Json::array();
  for (const GpuTiers& gpu : table.gpus) {
    Json row;
    row["index"] = gpu.gpu;
    row.update(place_json(machine.gpus[gpu.gpu].at, false));
    row["tiers"] = gpu.tiers;
    row["shared_bridge"] = !gpu.bridge.empty();
    out["gpus"].push_back(std::move(row));
  }
  out["hosts"] = Json::array();
  for (const NodeTiers& node : table.nodes) {
    Json row;
    row["numa"] = node.node;
    row["tiers"] = node.tiers;
    out["hosts"].push_back(std::move(row));
  }
  out["memory_only_numa_nodes"] = table.memory_only_nodes;
  out["left_out"] = Json::array();
  for (const LeftOut& device : table.left_out) {
    Json row;
    row["name"] = device.name;
    row["why"] = device.why;
    out["left_out"].push_back(std::move(row));
  }
  return out;
}

}  // namespace mc::topo
