// Describes a machine: NUMA nodes, GPUs, NICs, disks, and their place in the PCI tree. NICs are
// RDMA devices and network devices, disks are NVMe. Discovery fills it (topo/discover/discover.h),
// the tier rule reads it (topo/model/tiers.h).
//
// NUMA ids and CPU numbers are the kernel's and may have gaps.
//
// Thread: values; any thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace mc::topo {

inline constexpr int kUnknownNode = -1;

struct NumaNode {
  int id = 0;
  std::vector<int> cpus{};  // empty: a memory-only node
  uint64_t memory_bytes = 0;
};

// The PCIe link above a function; 0: unknown.
struct PciLink {
  double gt_per_s = 0, gt_per_s_max = 0;  // per lane; the maximum is the function's own
  uint32_t width = 0, width_max = 0;      // lanes
};

// Where a device sits. Virtual devices have no address and no bridges.
struct DeviceLocation {
  std::string pci{};                   // "0000:4f:00.0", or ""
  int numa = kUnknownNode;             // what the kernel's numa_node says
  std::vector<std::string> bridges{};  // outermost first, the host bridge "pci0000:44" included
  PciLink link{};
};

inline constexpr const char* kNotRecorded = "not recorded";  // a state that the source leaves out

struct Gid {
  int index = 0;
  std::string value{};   // "fe80:0000:...", as the kernel writes it
  std::string type{};    // "RoCE v2", "IB/RoCE v1"
  std::string netdev{};  // "" when none
};

struct Port {
  int number = 1;
  std::string state{};  // "ACTIVE", "DOWN", ...
  std::string link_layer{};
  std::string rate{};  // as the kernel words it: "100 Gb/sec (4X)"
  std::vector<Gid> gids{};
  bool active() const { return state == "ACTIVE" || state == kNotRecorded; }
};

struct RdmaDevice {
  std::string name{};
  DeviceLocation at{};
  std::vector<Port> ports{};
  std::string driver{};  // "mlx5_core"; "" when unknown
  std::string netdev{};  // the first network device of the same function
};

struct NetDevice {
  std::string name{};
  DeviceLocation at{};
  std::vector<std::string> addresses{};  // "10.0.0.1/24", live machine only
  uint64_t speed_mbit = 0;               // 0: unknown
  bool up = false;
  uint32_t mtu = 0;  // 0: unknown
  std::string driver{};
};

struct GpuPeer {  // links to another GPU beside PCIe
  std::string pci{};
  std::string type{};  // "NVLink", "xGMI"
  uint32_t links = 0;
  uint32_t generation = 0;  // of the type; 0: unknown
  bool switched = false;    // through switches (NVSwitch), which other peers share
};

struct GpuPath {  // how far the driver sees another GPU over PCIe
  std::string pci{};
  std::string kind{};       // "PIX", "PXB", "PHB", "NODE", "SYS": see topo/model/gpu_links.h
  std::string no_access{};  // why they do not read and write each other's memory; "" if they do
};

struct Gpu {  // its index is its position: in PCI order, or as NCCL numbered it
  std::string name{};
  DeviceLocation at{};
  std::vector<GpuPeer> peers{};
  std::string driver{};
  std::vector<GpuPath> paths{};
  uint32_t nvlinks = 0, nvlinks_active = 0;
  std::string trouble{};  // "GPU is lost", in the words of its driver; "" when none
};

struct Disk {
  std::string name{};  // "nvme0"
  DeviceLocation at{};
  std::string model{};
  uint64_t bytes = 0;  // of its namespaces; 0: unknown
};

struct Machine {
  std::string source{};  // "live", or the folder or file it was read from
  std::vector<NumaNode> nodes{};
  std::vector<Gpu> gpus{};
  std::vector<RdmaDevice> rdma{};
  std::vector<NetDevice> nets{};
  std::vector<Disk> disks{};
  std::string nvml{};  // NVML's version, or why there is none; "" when the source does not say
  bool nvml_failed = false;  // it is installed and does not answer
};

}  // namespace mc::topo
