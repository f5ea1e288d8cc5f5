// Opens RDMA: one-sided reads and writes over reliable connected queue pairs of libibverbs. It
// uses every NIC of this machine that the configuration allows. The library is loaded on demand.
//
// Errors: of open(): a build without the library's headers, a machine without the library, and a
// machine without a device.
// Thread: any.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "xfer/core/transport.h"
#include "xfer/memory/registry.h"
#include "xfer/transports/rdma/config.h"

namespace mc::xfer::rdma {

struct Rdma {
  std::shared_ptr<Offer> offer;
  std::unique_ptr<Transport> transport;
};
// kUnsupported: there is no library, no device, or not in this build. kNotFound: no such NIC.
Result<Rdma> open(Sink& sink, const Registry& registry, const Clock& clock, Metrics& metrics,
                  RdmaConfig config);
// The devices that can be used; empty without a library.
std::vector<std::string> device_names();
// The others, such as iWARP's.
std::vector<DeviceLeftOut> devices_left_out();

}  // namespace mc::xfer::rdma
