// How RDMA is used, which devices are not, and what this process offers by it.
//
// Thread: values; an Offer from any.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "xfer/core/fence.h"
#include "xfer/core/memory_location.h"
#include "xfer/core/messages.h"
#include "xfer/core/policies.h"
#include "xfer/memory/registry.h"
#include "xfer/qos/nic_inflight.h"
#include "xfer/rails/rail_scheduler.h"

namespace mc::xfer::rdma {

struct RdmaConfig {
  NodeId node;
  std::string secret;                  // of this process; peers that know it may connect
  std::string listen = "127.0.0.1:0";  // where peers ask for connections
  std::vector<std::string> nics{};     // devices by name; empty: all
  uint32_t endpoints = 256;            // queue pairs kept, to all peers
  Eviction eviction = Eviction::kSieve;
  Duration peer_timeout = std::chrono::seconds(3);
  int gid_index = -1;          // -1: the best one there is
  uint32_t traffic_class = 0;  // 0 to 255
  uint32_t mtu = 0;            // 256 to 4096 bytes; 0: what the port has
  uint32_t pkey = 0;           // partition key; 0: the first one that the port has
  uint32_t service_level = 0;  // 0 to 15
  uint32_t flow_label = 0;     // 20 bits
  std::string sysfs = "/sys";  // where the places of devices and GPUs are looked up
  SprayConfig spray{};
  NicInflight* nic_inflight = nullptr;
};

struct DeviceLeftOut {  // of this machine
  std::string name, why;
};

// This process's offer by RDMA: registers buffers, and adds to each descriptor.
class Offer : public RegistrationObserver {
 public:
  virtual void describe_nics(SegmentDescriptor& segment) const = 0;
  // Of memory of the GPU at this PCI address, for Slice::memory.
  virtual MemoryLocation location_of_gpu(const std::string& pci) const = 0;
  // Closes the queue pairs of all peers if a range is unfinished, and clears `done` of those until
  // that has happened. Never waits.
  virtual void fence(std::span<FencedRange> ranges) = 0;
  // Closes the devices. Memory is not reached by peers any more.
  virtual void stop() = 0;
};

}  // namespace mc::xfer::rdma
