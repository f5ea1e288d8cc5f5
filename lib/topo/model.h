// A machine as data: NUMA nodes, GPUs, RDMA devices and network devices, and where each one hangs
// in the PCI tree. Discovery fills it (topo/discover.h), the tier rule reads it (topo/tiers.h).
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
  std::vector<int> cpus;  // empty: a memory-only node
  uint64_t memory_bytes = 0;
};

// Where a device sits. Virtual devices have no address and no bridges.
struct Place {
  std::string pci;                   // "0000:4f:00.0", or ""
  int numa = kUnknownNode;           // what the kernel's numa_node says
  std::vector<std::string> bridges;  // outermost first, the host bridge "pci0000:44" included
};

struct Port {
  int number = 1;
  std::string state;  // "ACTIVE", "DOWN", ...
  std::string link_layer;
  std::string rate;  // as the kernel words it: "100 Gb/sec (4X)"
  bool active() const { return state == "ACTIVE"; }
};

struct RdmaDevice {
  std::string name;
  Place at;
  std::vector<Port> ports;
};

struct NetDevice {
  std::string name;
  Place at;
  std::vector<std::string> addresses;  // IPv4 and IPv6, live machine only
  uint64_t speed_mbit = 0;             // 0: unknown
  bool up = false;
};

struct Gpu {  // its index is its position in PCI order
  std::string name;
  Place at;
};

struct Machine {
  std::string source;  // "live" or the folder it was read from
  std::vector<NumaNode> nodes;
  std::vector<Gpu> gpus;
  std::vector<RdmaDevice> rdma;
  std::vector<NetDevice> nets;
};

}  // namespace mc::topo
