// Instead of lib/xfer/rdma where this was built without libibverbs-dev.
#include "xfer/transports/rdma/open.h"

namespace mc::xfer::rdma {

Result<Rdma> open(Sink&, const Registry&, const Clock&, Metrics&, RdmaConfig) {
  return fail(Code::kUnsupported, "this was built without libibverbs-dev, and has no rdma");
}

std::vector<std::string> device_names() { return {}; }

}  // namespace mc::xfer::rdma
