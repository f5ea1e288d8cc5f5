#include "topo/formats/nccl_xml.h"

#include <algorithm>
#include <map>
#include <set>

#include "topo/model/gpu_links.h"
#include "topo/model/limits.h"
#include "topo/model/numbers.h"
#include "topo/model/pci.h"

namespace mc::topo {
namespace {

constexpr const char* kSwitchClass = "0x0680";  // a bridge of no known kind: NVSwitch

class NcclBuilder {
 public:
  explicit NcclBuilder(const std::string& where) : where_(where) { machine_.source = where; }

  Result<Machine> system(const XmlElement& root) {
    for (const XmlElement& child : root.children) {
      if (child.name == "cpu") MC_TRY_(cpu(child));
      if (child.name == "nic") nic(child, DeviceLocation{});
    }
    if (hosts_.empty()) {
      return fail(Code::kInvalid, "%s: <system> holds no <cpu>: not a whole NCCL topology",
                  where_.c_str());
    }
    if (machine_.nodes.empty()) machine_.nodes.push_back({});  // a kernel without NUMA
    finish();
    return std::move(machine_);
  }

 private:
  Result<> cpu(const XmlElement& element) {
    const std::string host = element.get("host_hash");
    hosts_.insert(host);
    if (hosts_.size() > 1) {
      return fail(Code::kInvalid,
                  "%s: <cpu> of several hosts (host_hash %s and others): give the dump of one host",
                  where_.c_str(), host.c_str());
    }
    const std::string id = element.get("numaid");
    int node = kUnknownNode;
    if (id != "-1") {
      const auto number = parse_number(id);
      if (!number || *number > kNumbersMax) {
        return fail(Code::kInvalid, "%s: <cpu numaid=\"%s\"> is no NUMA node (0..%d)",
                    where_.c_str(), id.substr(0, 40).c_str(), kNumbersMax);
      }
      node = static_cast<int>(*number);
      MC_TRY(auto cpus, parse_mask(element.get("affinity"), where_));
      add_node(node, std::move(cpus));
    }
    for (const XmlElement& child : element.children) {
      if (child.name == "pci") MC_TRY_(pci(child, {.pci = {}, .numa = node, .bridges = {}}));
      if (child.name == "nic") nic(child, DeviceLocation{});
    }
    return {};
  }

  void add_node(int id, std::vector<int> cpus) {
    if (machine_.nodes.size() > kMachineNodesMax) return;  // it is refused as too large
    const auto same = [&](const NumaNode& n) { return n.id == id; };
    const auto known = std::find_if(machine_.nodes.begin(), machine_.nodes.end(), same);
    if (known == machine_.nodes.end()) {
      machine_.nodes.push_back({.id = id, .cpus = std::move(cpus), .memory_bytes = 0});
    }
  }

  Result<> pci(const XmlElement& element,
               DeviceLocation at) {  // `at`: where its parent's children are
    const std::string text = element.get("busid");
    const auto address = kernel_pci_address(text);
    if (!address) {
      return fail(Code::kInvalid, "%s: <pci busid=\"%s\"> is no PCI address such as 0000:4f:00.0",
                  where_.c_str(), text.substr(0, 40).c_str());
    }
    if (!seen_.insert(*address).second) {
      return fail(Code::kInvalid, "%s: <pci busid=\"%s\"> is there twice: a tree has it once",
                  where_.c_str(), address->c_str());
    }
    at.pci = *address;
    PciFunction function;
    const auto id = [&](const char* attribute) {
      return static_cast<uint32_t>(parse_number(element.get(attribute), 16).value_or(0));
    };
    function.class_code = id("class");
    function.vendor = id("vendor");
    function.device = id("device");
    at.link.gt_per_s = parse_gt_per_s(element.get("link_speed"));
    at.link.width = static_cast<uint32_t>(parse_number(element.get("link_width")).value_or(0));
    const XmlElement* gpu = nullptr;
    for (const XmlElement& child : element.children) {
      if (child.name == "gpu") gpu = &child;
    }
    if (gpu || is_gpu(function)) add_gpu(gpu, function, at);
    for (const XmlElement& child : element.children) {
      if (child.name == "nic") nic(child, at);
    }
    DeviceLocation below = at;
    below.bridges.push_back(*address);
    below.link = {};
    for (const XmlElement& child : element.children) {
      if (child.name == "pci") MC_TRY_(pci(child, below));
    }
    return {};
  }

  void add_gpu(const XmlElement* element, const PciFunction& function, const DeviceLocation& at) {
    Gpu gpu{.name = gpu_name(function), .at = at};
    uint32_t switched = 0;
    if (element) {
      for (const XmlElement& link : element->children) {
        if (link.name != "nvlink" && link.name != "xgmi") continue;
        const auto target = kernel_pci_address(link.get("target"));
        const auto count = parse_number(link.get("count")).value_or(1);
        if (link.get("tclass").starts_with(kSwitchClass)) {  // its target is no real address
          switched += static_cast<uint32_t>(std::min<uint64_t>(count, 1024));
          continue;
        }
        if (!target) continue;
        gpu.peers.push_back({.pci = *target,
                             .type = link.name == "nvlink" ? "NVLink" : "xGMI",
                             .links = static_cast<uint32_t>(std::min<uint64_t>(count, 1024))});
      }
    }
    const auto order = element ? parse_number(element->get("dev")) : std::nullopt;
    gpus_.push_back({order.value_or(UINT64_MAX), std::move(gpu), switched});
  }

  void nic(const XmlElement& element, const DeviceLocation& at) {
    for (const XmlElement& net : element.children) {
      if (net.name != "net") continue;
      const uint64_t mbit = parse_number(net.get("speed")).value_or(0);
      if (net.get("port") == "0" && net.get("gdr") != "1") {
        machine_.nets.push_back({.name = net.get("name"),
                                 .at = at,
                                 .addresses = {},
                                 .speed_mbit = mbit,
                                 .up = true,
                                 .mtu = 0,
                                 .driver = {}});
        continue;
      }
      Port port;
      port.number =
          static_cast<int>(std::min<uint64_t>(parse_number(net.get("port")).value_or(1), 255));
      port.state = kNotRecorded;
      if (mbit > 0) port.rate = strf("%g Gb/sec", static_cast<double>(mbit) / 1000);
      const auto [known, fresh] =
          rdma_.emplace(std::pair(at.pci, net.get("name")), machine_.rdma.size());
      if (fresh) machine_.rdma.push_back({.name = net.get("name"), .at = at, .ports = {}});
      machine_.rdma[known->second].ports.push_back(std::move(port));
    }
  }

  void finish() {
    std::stable_sort(gpus_.begin(), gpus_.end(),
                     [](const auto& a, const auto& b) { return a.order < b.order; });
    std::vector<uint32_t> switched;
    for (Ordered& one : gpus_) {
      machine_.gpus.push_back(std::move(one.gpu));
      switched.push_back(one.switched);
    }
    if (switched.size() <= kMachineGpusMax) join_switched(machine_, switched);
    std::sort(machine_.nodes.begin(), machine_.nodes.end(),
              [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  }

  const std::string& where_;
  Machine machine_;
  std::set<std::string> seen_, hosts_;
  std::map<std::pair<std::string, std::string>, size_t> rdma_;  // by function and name
  struct Ordered {
    uint64_t order;  // "dev", the index that NCCL gives it
    Gpu gpu;
    uint32_t switched;  // its NVLinks that end at switches
  };
  std::vector<Ordered> gpus_;
};

}  // namespace

Result<Machine> machine_from_nccl(const XmlElement& system, const std::string& where) {
  return NcclBuilder(where).system(system);
}

}  // namespace mc::topo
