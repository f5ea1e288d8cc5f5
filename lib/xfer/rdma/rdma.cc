#include "xfer/rdma/rdma.h"

#include "xfer/rdma/transport.h"

namespace mc::xfer::rdma {

Result<Rdma> open(Sink& sink, const Registry& registry, const Clock& clock, Metrics& metrics,
                  Config config) {
  if (config.traffic_class > 255)
    return fail(Code::kInvalid, "traffic-class %u: want 0 to 255", config.traffic_class);
  if (config.mtu != 0 && config.mtu != 256 && config.mtu != 512 && config.mtu != 1024 &&
      config.mtu != 2048 && config.mtu != 4096)
    return fail(Code::kInvalid, "rdma-mtu %u: want 256, 512, 1024, 2048, 4096, or 0", config.mtu);
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

}  // namespace mc::xfer::rdma
