// Opens RDMA: one-sided reads and writes over reliable connected queue pairs of libibverbs. It
// uses every NIC of this machine that the configuration allows. The library is loaded on demand.
//
// Errors: of open(): a build without the library's headers, a machine without the library, and a
// machine without a device.
// Thread: any.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "xfer/core/fence.h"
#include "xfer/core/transport.h"
#include "xfer/memory/registry.h"
#include "xfer/qos/nic_inflight.h"
#include "xfer/rails/endpoint_pool.h"
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
  std::string sysfs = "/sys";  // where the places of devices and GPUs are looked up
  SprayConfig spray{};
  NicInflight* nic_inflight = nullptr;
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

struct Rdma {
  std::shared_ptr<Offer> offer;
  std::unique_ptr<Transport> transport;
};
// kUnsupported: there is no library, no device, or not in this build. kNotFound: no such NIC.
Result<Rdma> open(Sink& sink, const Registry& registry, const Clock& clock, Metrics& metrics,
                  RdmaConfig config);
// The devices there are; empty without a library.
std::vector<std::string> device_names();

}  // namespace mc::xfer::rdma
