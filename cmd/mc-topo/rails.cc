#include "cmd/mc-topo/rails.h"

#include <algorithm>
#include <cstdlib>

#include "topo/model/tiers.h"

namespace mc::topo {
namespace {

// The address of a port: the IPv4 or IPv6 address in its RoCE v2 GID. InfiniBand has none that
// tells its subnet.
std::string address_of(const RdmaDevice& device) {
  for (const Port& port : device.ports) {
    if (!port.active()) continue;
    for (const Gid& gid : port.gids) {
      constexpr const char* kMapped = "0000:0000:0000:0000:0000:ffff:";
      if (gid.type != "RoCE v2" || !gid.value.starts_with(kMapped) || gid.value.size() != 39) {
        continue;
      }
      const auto byte = [&](size_t at) {
        return std::to_string(std::strtoul(gid.value.substr(at, 2).c_str(), nullptr, 16));
      };
      return byte(30) + "." + byte(32) + "." + byte(35) + "." + byte(37);
    }
  }
  return "";
}

}  // namespace

std::vector<xfer::Nic> rail_ends(const Machine& machine) {
  const TierTable table = tier_table(machine);
  const auto left_out = [&](const std::string& name) {
    return std::any_of(table.left_out.begin(), table.left_out.end(),
                       [&](const LeftOut& device) { return device.name == name; });
  };
  std::vector<xfer::Nic> out;
  for (const RdmaDevice& device : machine.rdma) {
    if (left_out(device.name)) continue;
    const std::string address = address_of(device);
    out.push_back({.name = device.name,
                   .address = address,
                   .prefix_bits = 0,
                   .numa = device.at.numa,
                   .gpu = nearest_gpu(table, device.name),
                   .speed_mbit = 0});
  }
  if (!out.empty()) return out;
  for (const NetDevice& device : machine.nets) {
    if (!device.up || device.name == "lo") continue;
    xfer::Nic nic{.name = device.name,
                  .address = {},
                  .prefix_bits = 0,
                  .numa = device.at.numa,
                  .gpu = {},
                  .speed_mbit = device.speed_mbit};
    if (!device.addresses.empty()) nic.address = device.addresses.front();
    out.push_back(std::move(nic));
  }
  return out;
}

Rails pair_machines(const Machine& local, const Machine& remote) {
  Rails rails{.local = rail_ends(local), .remote = rail_ends(remote), .pairs = {}};
  rails.pairs = xfer::pair_rails(rails.local, rails.remote);
  return rails;
}

}  // namespace mc::topo
