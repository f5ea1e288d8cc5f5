#include "topo/report/diff.h"

#include <map>

#include "base/result.h"
#include "base/text.h"
#include "base/units.h"
#include "topo/model/numbers.h"
#include "topo/model/tiers.h"

namespace mc::topo {
namespace {

using Facts = std::map<std::string, std::string>;  // a fact of empty value is not known

struct ByCount {
  bool operator()(const std::string& a, const std::string& b) const {
    return in_natural_order(a, b);
  }
};
using Devices = std::map<std::string, Facts, ByCount>;

void add_location(const DeviceLocation& at, Facts& facts) {
  facts["PCI address"] = at.pci;
  facts["NUMA node"] = at.numa == kUnknownNode ? "unknown" : std::to_string(at.numa);
  facts["bridges"] = join(at.bridges, " > ");
  if (at.link.width > 0) {
    facts["PCIe link"] = strf("%g GT/s x%u", at.link.gt_per_s, at.link.width);
  }
}

void add_rdma(const RdmaDevice& device, Facts& facts) {
  add_location(device.at, facts);
  facts["driver"] = device.driver;
  facts["netdev"] = device.netdev;
  for (const Port& port : device.ports) {
    const std::string prefix = strf("port %d ", port.number);
    facts[prefix + "state"] = port.state == kNotRecorded ? "" : port.state;
    facts[prefix + "link layer"] = port.link_layer;
    facts[prefix + "rate"] = port.rate;
    for (const Gid& gid : port.gids) {
      facts[prefix + strf("GID %d", gid.index)] = gid.value + " " + gid.type;
    }
  }
}

void add_tiers(const Machine& machine, Devices& devices) {
  const TierTable table = tier_table(machine);
  const auto add = [&](const std::string& location, const Tiers& tiers) {
    for (size_t tier = 0; tier < tiers.size(); ++tier) {
      for (const std::string& name : tiers[tier]) {
        devices["rdma " + name]["tier for " + location] = std::to_string(tier + 1);
      }
    }
  };
  for (const NodeTiers& node : table.nodes) add(strf("node %d", node.node), node.tiers);
  for (const GpuTiers& gpu : table.gpus) add("gpu " + machine.gpus[gpu.gpu].at.pci, gpu.tiers);
}

Devices devices_of(const Machine& machine) {
  Devices out;
  for (const NumaNode& node : machine.nodes) {
    Facts& facts = out[strf("node %d", node.id)];
    facts["CPUs"] = node.cpus.empty() ? "none" : ranges(node.cpus);
    if (node.memory_bytes > 0) facts["memory"] = rounded_bytes_text(node.memory_bytes);
  }
  for (const Gpu& gpu : machine.gpus) {
    Facts& facts = out["gpu " + gpu.at.pci];
    add_location(gpu.at, facts);
    facts["model"] = gpu.name;
    facts["driver"] = gpu.driver;
    for (const GpuPeer& peer : gpu.peers) {
      facts["links to " + peer.pci] = strf("%s x%u", peer.type.c_str(), peer.links);
    }
    if (gpu.nvlinks > 0) facts["NVLinks up"] = strf("%u of %u", gpu.nvlinks_active, gpu.nvlinks);
    facts["trouble"] = gpu.trouble;
  }
  for (const RdmaDevice& device : machine.rdma) add_rdma(device, out["rdma " + device.name]);
  for (const NetDevice& device : machine.nets) {
    Facts& facts = out["net " + device.name];
    add_location(device.at, facts);
    facts["state"] = device.up ? "up" : "down";
    facts["driver"] = device.driver;
    if (device.mtu > 0) facts["MTU"] = std::to_string(device.mtu);
    if (device.speed_mbit > 0) facts["speed"] = strf("%g Gb/s", double(device.speed_mbit) / 1000);
  }
  for (const Disk& disk : machine.disks) {
    Facts& facts = out["disk " + disk.name];
    add_location(disk.at, facts);
    facts["model"] = disk.model;
    if (disk.bytes > 0) facts["size"] = rounded_bytes_text(disk.bytes);
  }
  add_tiers(machine, out);
  return out;
}

void compare(const std::string& device, const Facts& before, const Facts& after,
             std::vector<Change>& out) {
  Facts all = before;
  all.insert(after.begin(), after.end());
  for (const auto& [fact, ignored] : all) {
    const auto a = before.find(fact), b = after.find(fact);
    // A tier, GID or link that one side lacks is gone; any other fact may just not be recorded.
    const bool counted = fact.starts_with("tier for") || fact.find(" GID ") != std::string::npos ||
                         fact.starts_with("links to") || fact == "trouble";
    const std::string x = a == before.end() ? "" : a->second;
    const std::string y = b == after.end() ? "" : b->second;
    if (x == y || (!counted && (x.empty() || y.empty()))) continue;
    out.push_back({device, fact, x, y});
  }
}

}  // namespace

std::vector<Change> differences(const Machine& before, const Machine& after) {
  const Devices a = devices_of(before), b = devices_of(after);
  std::vector<Change> out;
  Devices all = a;
  all.insert(b.begin(), b.end());
  for (const auto& [device, ignored] : all) {
    const auto x = a.find(device), y = b.find(device);
    if (x == a.end()) {
      out.push_back({device, "", "", "there"});
    } else if (y == b.end()) {
      out.push_back({device, "", "there", ""});
    } else {
      compare(device, x->second, y->second, out);
    }
  }
  return out;
}

std::string changes_text(const std::vector<Change>& changes) {
  std::string out;
  for (const Change& change : changes) {
    if (change.fact.empty()) {
      out += (change.before.empty() ? "+ " : "- ") + change.device + "\n";
      continue;
    }
    const auto shown = [](const std::string& s) { return s.empty() ? "-" : s.c_str(); };
    out += strf("~ %s: %s: %s -> %s\n", change.device.c_str(), change.fact.c_str(),
                shown(change.before), shown(change.after));
  }
  return out.empty() ? "no difference\n" : out;
}

}  // namespace mc::topo
