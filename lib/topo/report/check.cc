#include "topo/report/check.h"

#include <algorithm>
#include <map>

#include "base/units.h"
#include "topo/model/gpu_links.h"
#include "topo/model/numbers.h"
#include "topo/model/tiers.h"

namespace mc::topo {
namespace {

constexpr uint32_t kRoceMtu = 4200;  // a 4096-byte RDMA MTU and its headers

// Collects findings, and answers questions that many checks ask.
class Doctor {
 public:
  Doctor(const Machine& machine, const Host& host) : m_(machine), host_(host) {}

  std::vector<Finding> examine() {
    for (const RdmaDevice& device : m_.rdma) {
      ports(device);
      software(device);
      gids(device);
      mtu(device);
      user_space(device);
    }
    rates();
    links();
    placement();
    missing_devices();
    gpu_direct();
    gpu_links();
    iommu();
    memory();
    std::stable_sort(out_.begin(), out_.end(), [](const Finding& a, const Finding& b) {
      return a.severity == Severity::kWrong && b.severity != Severity::kWrong;
    });
    return std::move(out_);
  }

 private:
  void wrong(const char* id, std::string where, std::string what, std::string remedy) {
    out_.push_back({Severity::kWrong, id, std::move(where), std::move(what), std::move(remedy)});
  }
  void note(const char* id, std::string where, std::string what, std::string remedy) {
    out_.push_back({Severity::kNote, id, std::move(where), std::move(what), std::move(remedy)});
  }
  bool module(const char* name) const { return host_.modules && host_.modules->contains(name); }
  bool is_software(const RdmaDevice& device) const {
    return device.at.pci.empty() && device.at.numa == kUnknownNode;
  }
  bool hardware_rdma() const {
    return std::any_of(m_.rdma.begin(), m_.rdma.end(),
                       [&](const RdmaDevice& d) { return !is_software(d); });
  }
  bool nvidia_gpus() const {
    return std::any_of(m_.gpus.begin(), m_.gpus.end(),
                       [](const Gpu& g) { return g.name.starts_with("NVIDIA"); });
  }
  const NetDevice* net(const std::string& name) const {
    for (const NetDevice& device : m_.nets) {
      if (device.name == name) return &device;
    }
    return nullptr;
  }

  void ports(const RdmaDevice& device) {
    if (device.ports.empty()) {
      wrong("no-port", device.name, "the device has no port",
            "its driver failed half way: see 'dmesg | grep -i " + device.name + "', reload it");
    }
    for (const Port& port : device.ports) {
      if (port.active()) continue;
      const std::string where = strf("%s port %d", device.name.c_str(), port.number);
      if (port.state == "INIT" || port.state == "ARMED") {
        wrong("port-not-active", where, "the link is up but the port is " + port.state,
              "no subnet manager has configured it: start opensm or the switch's, see 'sminfo'");
      } else {
        wrong("port-down", where,
              "the port is " + (port.state.empty() ? "in an unknown state" : port.state),
              "check cable, transceiver and switch port; 'ip link set dev " +
                  (device.netdev.empty() ? "NETDEV" : device.netdev) + " up' for RoCE, 'ibstat " +
                  device.name + "' for what the port says");
      }
    }
  }

  void software(const RdmaDevice& device) {
    if (!is_software(device)) return;
    note("software-rdma", device.name,
         "RDMA in software: rxe works, at the speed and CPU cost of the kernel's network stack, "
         "without GPUDirect, and it is in no tier; siw is iWARP, whose connections need rdma_cm, "
         "which mc has not",
         "good for trying things out; use --transport tcp for speed");
  }

  // RoCE between hosts needs a GID of RoCE v2; those of v1 do not cross routers.
  void gids(const RdmaDevice& device) {
    for (const Port& port : device.ports) {
      if (!port.active() || port.link_layer != "Ethernet" || port.gids.empty()) continue;
      const bool typed = std::any_of(port.gids.begin(), port.gids.end(),
                                     [](const Gid& g) { return !g.type.empty(); });
      const bool v2 = std::any_of(port.gids.begin(), port.gids.end(),
                                  [](const Gid& g) { return g.type == "RoCE v2"; });
      if (!typed || v2) continue;
      wrong("no-roce-v2-gid", strf("%s port %d", device.name.c_str(), port.number),
            strf("none of its %zu GIDs is of RoCE v2", port.gids.size()),
            "give its network device an IP address ('ip addr add'), and 'cma_roce_mode -d " +
                device.name + " -m 2'");
    }
  }

  void mtu(const RdmaDevice& device) {
    const NetDevice* under = net(device.netdev);
    if (!under || under->mtu == 0 || under->mtu >= kRoceMtu || device.ports.empty()) return;
    if (device.ports[0].link_layer != "Ethernet") return;
    note("small-mtu", device.name,
         strf("its network device %s has MTU %u, so RDMA packets carry 1024 bytes",
              under->name.c_str(), under->mtu),
         "'ip link set dev " + under->name +
             " mtu 9000' here, at the other ends and at the switches between");
  }

  void user_space(const RdmaDevice& device) {
    if (!host_.recorded_kernel_facts() || host_.uverbs.contains(device.name)) return;
    wrong("no-uverbs", device.name, "user space cannot open it: it has no uverbs device",
          "'modprobe ib_uverbs'; in a container, pass /dev/infiniband through");
  }

  // Ports of one model run at one rate, unless a cable or a switch port is at fault.
  void rates() {
    std::map<std::string, double> best;
    const auto key = [&](const RdmaDevice& device, const Port& port) {
      return device.driver + " " + port.link_layer + " " + (is_software(device) ? "soft" : "");
    };
    const auto rate = [](const Port& port) { return std::strtod(port.rate.c_str(), nullptr); };
    for (const RdmaDevice& device : m_.rdma) {
      for (const Port& port : device.ports) {
        double& most = best[key(device, port)];
        if (port.active()) most = std::max(most, rate(port));
      }
    }
    for (const RdmaDevice& device : m_.rdma) {
      for (const Port& port : device.ports) {
        const double most = best[key(device, port)];
        if (!port.active() || rate(port) == 0 || rate(port) >= most) continue;
        wrong("slow-port", strf("%s port %d", device.name.c_str(), port.number),
              strf("it runs at %s while others like it reach %g Gb/sec", port.rate.c_str(), most),
              "check its cable and transceiver, and the speed and splitting of its switch port");
      }
    }
  }

  void link(const char* kind, const std::string& name, const DeviceLocation& at, bool saves_power) {
    const PciLink& l = at.link;
    const std::string where = kind + (" " + name) + " (" + at.pci + ")";
    if (l.width > 0 && l.width < l.width_max) {
      wrong("pcie-width", where, strf("PCIe x%u where it could be x%u", l.width, l.width_max),
            "reseat the card, check the riser and the slot's wiring and bifurcation in the BIOS");
    }
    if (l.gt_per_s > 0 && l.gt_per_s < l.gt_per_s_max) {
      const std::string what =
          strf("PCIe at %g GT/s where it could be %g GT/s", l.gt_per_s, l.gt_per_s_max);
      if (saves_power) {
        note("pcie-speed", where, what, "idle GPUs slow their link down: look again under load");
      } else {
        wrong("pcie-speed", where, what,
              "check the slot's generation and its limit in the BIOS ('lspci -vv -s " + at.pci +
                  "', LnkSta against LnkCap)");
      }
    }
  }

  void links() {
    for (const RdmaDevice& device : m_.rdma) link("NIC", device.name, device.at, false);
    for (const Disk& disk : m_.disks) link("disk", disk.name, disk.at, false);
    for (size_t i = 0; i < m_.gpus.size(); ++i) {
      link("GPU", std::to_string(i), m_.gpus[i].at, true);
    }
  }

  void placement() {
    if (!hardware_rdma()) return;
    for (const RdmaDevice& device : m_.rdma) {
      if (m_.nodes.size() < 2 || is_software(device) || device.at.numa != kUnknownNode) continue;
      wrong("no-numa-node", device.name + " (" + device.at.pci + ")",
            "the kernel does not know its NUMA node (numa_node is -1), so it is in tier 3 of all",
            "update the firmware or enable NUMA in the BIOS; until then 'echo NODE > "
            "/sys/bus/pci/devices/" +
                device.at.pci + "/numa_node'");
    }
    for (const GpuTiers& gpu : tier_table(m_).gpus) {
      const DeviceLocation& at = m_.gpus[gpu.gpu].at;
      const std::string where = strf("GPU %zu (%s)", gpu.gpu, at.pci.c_str());
      if (at.numa == kUnknownNode && m_.nodes.size() > 1) {
        wrong("no-numa-node", where, "the kernel does not know its NUMA node (numa_node is -1)",
              "update the firmware or enable NUMA in the BIOS");
      } else if (gpu.tiers[0].empty() && !gpu.tiers[2].empty()) {
        wrong("other-socket", where,
              strf("no usable NIC is on its NUMA node %d: every transfer crosses sockets", at.numa),
              "move a NIC to a slot of that socket, or bring the ports of those there up");
      } else if (gpu.bridge.empty() && !gpu.tiers[0].empty()) {
        note("no-common-switch", where,
             "no NIC shares a PCI bridge with it: GPUDirect traffic passes the CPU's root complex",
             "expected on machines built so; else move a NIC below the GPU's switch");
      }
    }
  }

  void missing_devices() {
    for (const Unclaimed& f : host_.unclaimed) {
      const std::string where = f.pci + strf(" (%04x:%04x)", f.vendor, f.device);
      if (f.driver.empty()) {
        wrong("no-driver", where, "a NIC that can do RDMA, and no driver is bound to it",
              f.vendor == 0x15b3 ? "'modprobe mlx5_core' (and mlx5_ib); if missing, install the "
                                   "kernel's extra modules or DOCA-OFED"
                                 : "load its driver; 'lspci -k -s " + f.pci + "' names it");
      } else {
        wrong("no-rdma-driver", where,
              "its driver " + f.driver + " is bound, but there is no RDMA device",
              f.driver == "mlx5_core" ? "'modprobe mlx5_ib ib_uverbs', or bind it back from vfio"
                                      : "load the RDMA half of its driver");
      }
    }
    if (m_.rdma.empty()) {
      const bool can = host_.modules && module("rdma_rxe");
      note("no-rdma", "this machine",
           can ? "no RDMA device; the module for software RDMA is loaded" : "no RDMA device",
           "transfers use shared memory and TCP. To try RDMA in software: 'modprobe rdma_rxe && "
           "rdma link add rxe0 type rxe netdev eth0'; where modprobe does not find it, this kernel "
           "is built without it");
    }
  }

  void gpu_direct() {
    for (size_t i = 0; i < m_.gpus.size() && host_.recorded_kernel_facts(); ++i) {
      if (!m_.gpus[i].driver.empty()) continue;
      wrong("no-gpu-driver", strf("GPU %zu (%s)", i, m_.gpus[i].at.pci.c_str()),
            "no driver is bound to it", "install and load the vendor's driver; see 'dmesg'");
    }
    if (!nvidia_gpus() || !hardware_rdma() || !host_.modules) return;
    if (module("nvidia_peermem")) return;
    const auto parts = [&](size_t at) {
      return parse_number(
          host_.kernel.substr(at, host_.kernel.find_first_not_of("0123456789", at) - at));
    };
    const size_t dot = host_.kernel.find('.');
    const uint64_t major = parts(0).value_or(0);
    const uint64_t minor = dot == std::string::npos ? 0 : parts(dot + 1).value_or(0);
    if (major > 5 || (major == 5 && minor >= 12)) {
      note("dma-buf", "GPUDirect",
           "nvidia_peermem is not loaded; this kernel (" + host_.kernel +
               ") can register GPU memory through dma-buf",
           "dma-buf needs the open GPU kernel modules (570 and later: the default); else "
           "'modprobe nvidia_peermem'");
    } else {
      wrong("no-gpudirect", "GPUDirect",
            "nvidia_peermem is not loaded and kernel '" + host_.kernel +
                "' is too old for dma-buf (5.12): NICs cannot reach GPU memory",
            "'modprobe nvidia_peermem', and add it to /etc/modules-load.d");
    }
  }

  void gpu_links() {
    if (m_.nvml_failed && nvidia_gpus()) {
      wrong("nvml", "NVIDIA's driver", m_.nvml,
            "if the versions of driver and library differ, reload the driver's modules or reboot; "
            "else see 'dmesg | grep -i nvrm' and 'nvidia-smi'");
    }
    const auto numbers = gpu_numbers(m_);
    std::map<std::string, uint32_t> most;  // active NVLinks by model
    for (const Gpu& gpu : m_.gpus) {
      most[gpu.name] = std::max(most[gpu.name], gpu.nvlinks_active);
    }
    for (size_t i = 0; i < m_.gpus.size(); ++i) {
      const Gpu& gpu = m_.gpus[i];
      const std::string where = strf("GPU %zu (%s)", i, gpu.at.pci.c_str());
      if (!gpu.trouble.empty()) {
        wrong("gpu-trouble", where, gpu.trouble,
              "see 'dmesg | grep -i xid'; 'nvidia-smi --gpu-reset' or a reboot brings back what is "
              "not broken");
      } else if (gpu.nvlinks_active < most[gpu.name]) {
        wrong("nvlink-down", where,
              strf("%u of its %u NVLinks are up, %u on others like it", gpu.nvlinks_active,
                   gpu.nvlinks, most[gpu.name]),
              "see 'nvidia-smi nvlink -s'; reset the GPU, reseat its bridge, or look at the fabric "
              "manager's log");
      }
      unreachable(i, numbers);
    }
  }

  // Copies between such GPUs pass host memory.
  void unreachable(size_t index, const std::map<std::string, size_t>& numbers) {
    const Gpu& gpu = m_.gpus[index];
    std::map<std::string, std::vector<int>> peers;  // by reason
    for (const GpuPath& path : gpu.paths) {
      const auto other = numbers.find(path.pci);
      if (other == numbers.end() || other->second <= index || path.no_access.empty()) continue;
      peers[path.no_access].push_back(static_cast<int>(other->second));
    }
    for (const auto& [why, others] : peers) {
      note("no-gpu-peer", strf("GPU %zu (%s)", index, gpu.at.pci.c_str()),
           "no direct access to the memory of GPU " + ranges(others) + ": " + why,
           "copies between them pass host memory; expected of consumer cards, else look at ACS and "
           "the IOMMU");
    }
  }

  void iommu() {
    if (m_.gpus.empty() && !hardware_rdma()) return;
    const bool passthrough = host_.command_line.find("iommu=pt") != std::string::npos ||
                             host_.command_line.find("iommu.passthrough=1") != std::string::npos;
    if (host_.iommu_groups.value_or(0) > 0 && !passthrough && !host_.command_line.empty()) {
      wrong("iommu-translates", "kernel",
            strf("the IOMMU is on (%zu groups) and translates every transfer", *host_.iommu_groups),
            "add iommu=pt to the kernel's command line, unless devices go to virtual machines");
    }
    std::set<std::string> on_path;
    const auto look = [&](const DeviceLocation& at) {
      for (const std::string& bridge : at.bridges) {
        if (host_.acs_redirects.contains(bridge)) on_path.insert(bridge);
      }
    };
    for (const Gpu& gpu : m_.gpus) look(gpu.at);
    for (const RdmaDevice& device : m_.rdma) look(device.at);
    if (m_.gpus.empty() || !hardware_rdma() || on_path.empty()) return;
    std::string names;
    for (const std::string& bridge : on_path) names += (names.empty() ? "" : ", ") + bridge;
    wrong("acs", names,
          "PCI access control sends traffic between GPU and NIC up to the CPU and back",
          "turn ACS off in the BIOS, or for each bridge 'setpci -s BRIDGE ECAP_ACS+6.w=0000' after "
          "every boot");
  }

  void memory() {
    if (host_.memlock_bytes && *host_.memlock_bytes != kUnlimited && !m_.rdma.empty()) {
      wrong("memlock", "limits",
            "a process may lock only " + rounded_bytes_text(*host_.memlock_bytes) +
                " of memory: registering more for RDMA fails",
            "'* - memlock unlimited' in /etc/security/limits.conf, LimitMEMLOCK=infinity for "
            "systemd units, --ulimit memlock=-1 for containers");
    }
    const bool any = std::any_of(host_.huge_pages.begin(), host_.huge_pages.end(),
                                 [](const HugePages& p) { return p.total > 0; });
    if (!host_.huge_pages.empty() && !any) {
      note("no-huge-pages", "memory", "no huge pages are reserved",
           "pools of tens of GiB map and register faster on them: 'sysctl vm.nr_hugepages=N', N "
           "being the pool in units of 2 MiB");
    }
  }

  const Machine& m_;
  const Host& host_;
  std::vector<Finding> out_;
};

const RdmaDevice* rdma_named(const Machine& machine, const std::string& name) {
  for (const RdmaDevice& device : machine.rdma) {
    if (device.name == name) return &device;
  }
  return nullptr;
}

const Port* active_port(const RdmaDevice& device) {
  for (const Port& port : device.ports) {
    if (port.active()) return &port;
  }
  return nullptr;
}

std::set<std::string> gid_types(const Port& port) {
  std::set<std::string> out;
  for (const Gid& gid : port.gids) {
    if (!gid.type.empty()) out.insert(gid.type);
  }
  return out;
}

uint32_t mtu_of(const Machine& machine, const RdmaDevice& device) {
  for (const NetDevice& net : machine.nets) {
    if (net.name == device.netdev) return net.mtu;
  }
  return 0;
}

}  // namespace

std::vector<Finding> examine(const Machine& machine, const Host& host) {
  return Doctor(machine, host).examine();
}

std::vector<Finding> examine_pairs(const Machine& local, const Machine& remote,
                                   const std::vector<std::pair<std::string, std::string>>& rails) {
  std::vector<Finding> out;
  for (const auto& [here, there] : rails) {
    const RdmaDevice* a = rdma_named(local, here);
    const RdmaDevice* b = rdma_named(remote, there);
    const Port* x = a ? active_port(*a) : nullptr;
    const Port* y = b ? active_port(*b) : nullptr;
    if (!x || !y) continue;
    const std::string where = here + " -> " + there;
    const auto wrong = [&](const char* id, std::string what, std::string remedy) {
      out.push_back({Severity::kWrong, id, where, std::move(what), std::move(remedy)});
    };
    if (!x->link_layer.empty() && !y->link_layer.empty() && x->link_layer != y->link_layer) {
      wrong("link-layer-mismatch", x->link_layer + " here, " + y->link_layer + " there",
            "no packet can go between them: pair other NICs, or set the port type (mlxconfig "
            "LINK_TYPE_P1)");
      continue;
    }
    const auto s = gid_types(*x), t = gid_types(*y);
    const bool common =
        std::any_of(s.begin(), s.end(), [&](const auto& g) { return t.contains(g); });
    if (!s.empty() && !t.empty() && !common) {
      wrong("gid-mismatch",
            "no type of GID in common: " + *s.begin() + " here, " + *t.begin() + " there",
            "give both network devices IP addresses and choose RoCE v2 at both ends");
    }
    const uint32_t m = mtu_of(local, *a), n = mtu_of(remote, *b);
    if (m > 0 && n > 0 && m != n) {
      wrong(
          "mtu-mismatch", strf("MTU %u here, %u there", m, n),
          "set the same MTU at both ends and at every switch between ('ip link set dev NETDEV mtu "
          "9000')");
    }
    if (!x->rate.empty() && !y->rate.empty() &&
        std::strtod(x->rate.c_str(), nullptr) != std::strtod(y->rate.c_str(), nullptr)) {
      out.push_back({Severity::kNote, "rate-mismatch", where,
                     x->rate + " here, " + y->rate + " there",
                     "the rail runs at the slower end's rate"});
    }
  }
  return out;
}

std::string findings_text(const std::vector<Finding>& findings) {
  if (findings.empty()) return "nothing wrong\n";
  std::string out;
  size_t wrong = 0;
  for (const Finding& f : findings) {
    const bool bad = f.severity == Severity::kWrong;
    wrong += bad ? 1 : 0;
    out += strf("%s  [%s] %s: %s\n       %s\n", bad ? "WRONG" : "note ", f.id.c_str(),
                f.where.c_str(), f.what.c_str(), f.remedy.c_str());
  }
  return out + strf("%zu wrong, %zu to note\n", wrong, findings.size() - wrong);
}

}  // namespace mc::topo
