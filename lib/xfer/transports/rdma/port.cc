#include "xfer/transports/rdma/port.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

#include "io/file.h"

namespace mc::xfer::rdma {
namespace {

const uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// Higher is better: routable RoCE v2 first, what has no use at all is 0.
int worth(uint32_t type, const ibv_gid& gid) {
  static const ibv_gid none{};
  if (std::memcmp(&gid, &none, sizeof gid) == 0) return 0;
  const bool mapped = std::memcmp(gid.raw, kMappedPrefix, sizeof kMappedPrefix) == 0;
  const bool local = gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80;
  return (type == IBV_GID_TYPE_ROCE_V2 ? 4 : 1) + (mapped ? 2 : local ? 0 : 1);
}

uint64_t speed_of(const ibv_port_attr& port) {
  static const uint64_t lanes[] = {1, 4, 8, 12, 2};  // by the bit that is set
  uint64_t lane = 0, width = 1;
  switch (port.active_speed) {
    case 1: lane = 2500; break;
    case 2: lane = 5000; break;
    case 4:
    case 8: lane = 10000; break;
    case 16: lane = 14000; break;
    case 32: lane = 25000; break;
    case 64: lane = 50000; break;
    case 128: lane = 100000; break;
    default: break;
  }
  for (size_t bit = 0; bit < std::size(lanes); ++bit)
    if (port.active_width == 1u << bit) width = lanes[bit];
  return lane * width;
}

struct Reader {
  const Verbs& verbs;
  ibv_context* context;
  const std::string& device;
  const RdmaConfig& config;

  Result<ibv_port_attr> choose_port(PortFacts* facts) const;
  uint32_t gid_type(uint8_t port, int index) const;
  Result<> choose_gid(int entries, PortFacts* facts) const;
  Result<> choose_pkey(int entries, PortFacts* facts) const;
};

Failure refused_by(int error, const std::string& device, const char* what) {
  return fail(Code::kUnavailable, "%s: %s: %s", device.c_str(), what, std::strerror(error));
}

Result<ibv_port_attr> Reader::choose_port(PortFacts* facts) const {
  ibv_device_attr attr{};
  if (const int error = verbs.query_device(context, &attr); error != 0)
    return refused_by(error, device, "query");
  ibv_port_attr first{};
  for (uint8_t p = 1; p <= attr.phys_port_cnt; ++p) {
    ibv_port_attr port{};
    const int error = verbs.query_port(context, p, &port);
    if (error != 0 && p == 1) return refused_by(error, device, "query its port");
    if (p == 1) first = port;
    if (error != 0 || port.state != IBV_PORT_ACTIVE) continue;
    facts->port = p;
    return port;
  }
  return first;
}

uint32_t Reader::gid_type(uint8_t port, int index) const {
  if (verbs.query_gid_ex != nullptr) {
    ibv_gid_entry entry{};
    const auto i = static_cast<uint32_t>(index);
    return verbs.query_gid_ex(context, port, i, &entry, 0, sizeof entry) == 0
               ? entry.gid_type
               : static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V1);
  }
  const std::string file = "/sys/class/infiniband/" + device + "/ports/" + std::to_string(port) +
                           "/gid_attrs/types/" + std::to_string(index);
  return io::read_file(file).value_or("").find("v2") != std::string::npos ? IBV_GID_TYPE_ROCE_V2
                                                                          : IBV_GID_TYPE_ROCE_V1;
}

Result<> Reader::choose_gid(int entries, PortFacts* facts) const {
  int best = -1, best_worth = 0;
  for (int i = 0; i < entries; ++i) {
    if (config.gid_index >= 0 && i != config.gid_index) continue;
    ibv_gid gid{};
    if (verbs.query_gid(context, facts->port, i, &gid) != 0) continue;
    const int w = worth(gid_type(facts->port, i), gid);
    if (w <= best_worth) continue;
    best = i;
    best_worth = w;
    facts->gid.assign(reinterpret_cast<const char*>(gid.raw), sizeof gid.raw);
    if (!facts->ethernet) break;
  }
  if (best < 0 && config.gid_index >= entries)
    return fail(Code::kInvalid, "%s has no GID %d: see ibv_devinfo -v, or leave --gid-index auto",
                device.c_str(), config.gid_index);
  facts->gid_index = std::max(best, 0);
  // One without an address is used once it has one.
  if (best < 0 && (facts->ethernet || config.gid_index >= 0)) facts->up = false;
  return {};
}

Result<> Reader::choose_pkey(int entries, PortFacts* facts) const {
  if (config.pkey == 0) return {};
  if (verbs.query_pkey == nullptr)
    return fail(Code::kUnsupported, "this libibverbs has no ibv_query_pkey");
  for (int i = 0; i < entries; ++i) {
    __be16 key = 0;
    if (verbs.query_pkey(context, facts->port, i, &key) != 0) continue;
    if ((be16toh(key) & 0x7fff) != (config.pkey & 0x7fff)) continue;
    facts->pkey_index = static_cast<uint16_t>(i);
    return {};
  }
  return fail(Code::kInvalid,
              "%s has no partition key %#x: see /sys/class/infiniband/%s/ports/%u/pkeys, or leave "
              "--rdma-pkey out",
              device.c_str(), config.pkey, device.c_str(), unsigned{facts->port});
}

}  // namespace

Result<PortFacts> read_port(const Verbs& verbs, ibv_context* context, const std::string& device,
                            const RdmaConfig& config) {
  const Reader reader{verbs, context, device, config};
  PortFacts facts;
  MC_TRY(const ibv_port_attr port, reader.choose_port(&facts));
  facts.lid = port.lid;
  facts.mtu = static_cast<uint32_t>(port.active_mtu);
  for (uint32_t wanted = 1; wanted <= 5; ++wanted)
    if (config.mtu == 128u << wanted) facts.mtu = std::min(facts.mtu, wanted);
  facts.ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  facts.global = !facts.ethernet && (port.flags & IBV_QPF_GRH_REQUIRED) != 0;
  facts.speed_mbit = speed_of(port);
  facts.up = port.state == IBV_PORT_ACTIVE && (facts.ethernet || facts.global || port.lid != 0);
  MC_TRY_(reader.choose_gid(port.gid_tbl_len, &facts));
  MC_TRY_(reader.choose_pkey(port.pkey_tbl_len, &facts));
  return facts;
}

}  // namespace mc::xfer::rdma
