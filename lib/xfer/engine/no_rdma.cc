// Replaces lib/xfer/transports/rdma in a build without libibverbs-dev.
#include "xfer/transports/rdma/open.h"

namespace mc::xfer::rdma {

Result<Rdma> open(Sink&, const Registry&, const Clock&, Metrics&, RdmaConfig) {
  return fail(Code::kUnsupported,
              "rdma is not available: this program was built without libibverbs-dev");
}

std::vector<std::string> device_names() { return {}; }
std::vector<DeviceLeftOut> devices_left_out() { return {}; }

}  // namespace mc::xfer::rdma
