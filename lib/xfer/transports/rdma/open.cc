#include "xfer/transports/rdma/open.h"

#include "xfer/transports/rdma/rdma_transport.h"

namespace mc::xfer::rdma {

Result<Rdma> open(Sink& sink, const Registry& registry, const Clock& clock, Metrics& metrics,
                  RdmaConfig config) {
  MC_TRY(auto host, Host::open(registry, clock, metrics, std::move(config)));
  auto transport = std::make_unique<RdmaTransport>(sink, host, metrics);
  MC_TRY_(transport->start());
  return Rdma{std::move(host), std::move(transport)};
}

std::vector<std::string> device_names() {
  const auto verbs = load_verbs();
  if (!verbs) return {};
  return Device::names(**verbs).value_or(std::vector<std::string>{});
}

std::vector<DeviceLeftOut> devices_left_out() {
  std::vector<DeviceLeftOut> out;
  const auto verbs = load_verbs();
  if (verbs) (void)Device::names(**verbs, &out);
  return out;
}

}  // namespace mc::xfer::rdma
