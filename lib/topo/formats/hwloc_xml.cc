#include "topo/formats/hwloc_xml.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "topo/model/numbers.h"
#include "topo/model/pci.h"

namespace mc::topo {
namespace {

constexpr size_t kNodesMax = 4096;
constexpr size_t kCpusMax = 1u << 20;  // counted once a node

using Infos = std::map<std::string, std::string>;

Infos infos_of(const XmlElement& object) {
  Infos out;
  for (const XmlElement& child : object.children) {
    if (child.name == "info") out.emplace(child.get("name"), child.get("value"));
  }
  return out;
}

// "Port1State" is a number of the kernel's enum.
std::vector<Port> ports_of(const Infos& infos) {
  static constexpr std::array kStates = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  std::vector<Port> ports;
  for (int i = 1; i <= 8; ++i) {
    const auto state = infos.find(strf("Port%dState", i));
    if (state == infos.end()) continue;
    const auto number = parse_number(state->second);
    Port port;
    port.number = i;
    port.state = number && *number < kStates.size() ? kStates[*number] : "state " + state->second;
    for (int g = 0; g < 8; ++g) {
      const auto gid = infos.find(strf("Port%dGID%d", i, g));
      if (gid != infos.end()) port.gids.push_back({g, gid->second, "", ""});
    }
    ports.push_back(std::move(port));
  }
  if (ports.empty()) ports.push_back({.number = 1, .state = kNotRecorded});
  return ports;
}

// Position of the walk: what a child of the current object is attached to.
struct Spot {
  std::vector<std::string> bridges;
  int node = kUnknownNode;
  const DeviceLocation* function = nullptr;
};

class HwlocBuilder {
 public:
  explicit HwlocBuilder(const std::string& where) : where_(where) { machine_.source = where; }

  Result<Machine> topology(const XmlElement& root) {
    MC_TRY_(collect_nodes(root));
    if (claims_.empty()) {
      return fail(Code::kInvalid,
                  "%s: no object with CPUs: hwloc's export is not whole; make it again with "
                  "'lstopo FILE.xml'",
                  where_.c_str());
    }
    own_cpus();
    MC_TRY_(walk(root, {}));
    const auto by_address = [](const auto& a, const auto& b) { return a.at.pci < b.at.pci; };
    std::stable_sort(machine_.gpus.begin(), machine_.gpus.end(), by_address);
    return std::move(machine_);
  }

 private:
  struct Claim {
    int node;
    std::vector<int> cpus;
    uint64_t memory_bytes;
  };

  Failure wrong(const XmlElement& object, const char* attribute, const char* what) const {
    return fail(Code::kInvalid, "%s: <object type=\"%s\" %s=\"%s\">: %s", where_.c_str(),
                object.get("type").substr(0, 40).c_str(), attribute,
                object.get(attribute).substr(0, 60).c_str(), what);
  }

  Result<> collect_nodes(const XmlElement& element) {
    for (const XmlElement& object : element.children) {
      if (object.name != "object") continue;
      if (object.get("type") == "NUMANode") {
        const auto id = parse_number(object.get("os_index"));
        if (!id || *id > kNumbersMax) return wrong(object, "os_index", "no NUMA node's number");
        MC_TRY(auto cpus, parse_mask(object.get("cpuset"), where_));
        cpus_ += cpus.size();
        if (cpus_ > kCpusMax || claims_.size() == kNodesMax) {
          return fail(Code::kInvalid, "%s: more than %zu NUMA nodes or %zu CPUs in them",
                      where_.c_str(), kNodesMax, kCpusMax);
        }
        const uint64_t bytes = parse_number(object.get("local_memory")).value_or(0);
        claims_.push_back({static_cast<int>(*id), std::move(cpus), bytes});
      }
      MC_TRY_(collect_nodes(object));
    }
    if (element.name != "topology" || !claims_.empty()) return {};
    for (const XmlElement& object : element.children) {  // a kernel without NUMA
      if (object.name != "object" || object.get("cpuset").empty()) continue;
      MC_TRY(auto cpus, parse_mask(object.get("cpuset"), where_));
      claims_.push_back({0, std::move(cpus), 0});
    }
    return {};
  }

  void own_cpus() {
    std::map<int, const Claim*> owner;
    std::map<int, NumaNode> nodes;
    for (const Claim& claim : claims_) {
      nodes[claim.node].id = claim.node;
      nodes[claim.node].memory_bytes = claim.memory_bytes;
      for (const int cpu : claim.cpus) {
        const Claim*& best = owner[cpu];
        if (!best || claim.cpus.size() < best->cpus.size() ||
            (claim.cpus.size() == best->cpus.size() && claim.node < best->node)) {
          best = &claim;
        }
      }
    }
    for (const auto& [cpu, claim] : owner) nodes[claim->node].cpus.push_back(cpu);
    for (auto& [id, node] : nodes) machine_.nodes.push_back(std::move(node));
  }

  Result<int> node_of(const std::string& nodeset) const {
    MC_TRY(const auto set, parse_mask(nodeset, where_));
    int found = kUnknownNode;
    for (const NumaNode& node : machine_.nodes) {
      if (node.cpus.empty() || !std::binary_search(set.begin(), set.end(), node.id)) continue;
      if (found != kUnknownNode) return kUnknownNode;
      found = node.id;
    }
    return found;
  }

  Result<> walk(const XmlElement& element, const Spot& spot) {
    for (const XmlElement& object : element.children) {
      if (object.name != "object") continue;
      const std::string type = object.get("type");
      if (type == "Bridge") {
        MC_TRY_(bridge(object, spot));
      } else if (type == "PCIDev") {
        MC_TRY_(function(object, spot));
      } else if (type == "OSDev") {
        device(object, spot);
      } else {
        Spot below = spot;
        if (object.find("nodeset")) {
          MC_TRY(below.node, node_of(object.get("nodeset")));
        }
        MC_TRY_(walk(object, below));
      }
    }
    return {};
  }

  Result<> bridge(const XmlElement& object, const Spot& spot) {
    Spot below = spot;
    if (object.get("bridge_type").starts_with("0-")) {  // below the host: "0003:[00-0a]"
      const std::string buses = object.get("bridge_pci");
      const size_t open = buses.find(":[");
      const std::string name = open == std::string::npos ? ""
                                                         : "pci" + buses.substr(0, open) + ":" +
                                                               buses.substr(open + 2, 2);
      if (!is_host_bridge(name))
        return wrong(object, "bridge_pci", "no range such as 0000:[00-1f]");
      below.bridges.push_back(name);
    } else {
      MC_TRY(std::string name, address(object));
      below.bridges.push_back(std::move(name));
    }
    return walk(object, below);
  }

  Result<std::string> address(const XmlElement& object) {
    auto found = kernel_pci_address(object.get("pci_busid"));
    if (!found) return wrong(object, "pci_busid", "no PCI address such as 0000:4f:00.0");
    if (!seen_.insert(*found).second) {
      return wrong(object, "pci_busid", "is there twice: a tree has it once");
    }
    return *found;
  }

  Result<> function(const XmlElement& object, const Spot& spot) {
    PciFunction f;
    MC_TRY(f.at.pci, address(object));
    f.at.numa = spot.node;
    f.at.bridges = spot.bridges;
    // "0302 [10de:2330] [10de:1212] a1"
    const std::string ids = object.get("pci_type");
    const auto id = [&](size_t at) {
      return static_cast<uint32_t>(
          at + 4 <= ids.size() ? parse_number(ids.substr(at, 4), 16).value_or(0) : 0);
    };
    f.class_code = id(0) << 8;
    f.vendor = id(6);
    f.device = id(11);
    if (is_gpu(f)) machine_.gpus.push_back({.name = gpu_name(f), .at = f.at});
    Spot below = spot;
    below.function = &f.at;
    return walk(object, below);
  }

  void device(const XmlElement& object, const Spot& spot) {
    const std::string name = object.get("name"), type = object.get("osdev_type");
    const DeviceLocation at = spot.function ? *spot.function : DeviceLocation{};
    const Infos infos = infos_of(object);
    const auto info = [&](const char* key) {
      const auto found = infos.find(key);
      return found == infos.end() ? std::string() : found->second;
    };
    if (type == "0" && name.starts_with("nvme")) {
      machine_.disks.push_back({.name = name,
                                .at = at,
                                .model = info("Model"),
                                .bytes = parse_number(info("Size")).value_or(0) << 10});
    } else if (type == "2") {
      // The file does not say whether it is up: it counts as up, as ports do.
      machine_.nets.push_back({.name = name, .at = at, .addresses = {}, .up = true});
    } else if (type == "3") {
      machine_.rdma.push_back({.name = name, .at = at, .ports = ports_of(infos)});
    }
  }

  const std::string& where_;
  Machine machine_;
  std::vector<Claim> claims_;
  size_t cpus_ = 0;  // in all claims
  std::set<std::string> seen_;
};

Result<> check_format(const XmlElement& root, const std::string& where) {
  const std::string version = root.get("version");
  const auto major = version.empty() ? 1 : parse_number(version.substr(0, version.find('.')));
  if (!major) {
    return fail(Code::kInvalid, "%s: format '%s' of <topology> is no hwloc version such as 2.0",
                where.c_str(), version.substr(0, 40).c_str());
  }
  if (*major > 2) {
    return fail(Code::kUnsupported,
                "%s: hwloc XML of format %s; formats 1 and 2 are read here (libhwloc 2.9 refuses "
                "later ones too): export it again where it was made with "
                "'lstopo --export-xml-flags v2 FILE.xml', or record the machine with "
                "'mc-topo capture'",
                where.c_str(), version.substr(0, 40).c_str());
  }
  return {};
}

}  // namespace

Result<Machine> machine_from_hwloc(const XmlElement& topology, const std::string& where) {
  MC_TRY_(check_format(topology, where));
  return HwlocBuilder(where).topology(topology);
}

}  // namespace mc::topo
