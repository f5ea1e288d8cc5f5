// What a device's port is at present: its link, its addresses and its partition. Private to
// rdma/*.cc. Ports change while they are open: a subnet manager gives a LID, a host's network an
// address.
//
// Thread: values; read_port() from any.
#pragma once
#include <string>

#include "xfer/transports/rdma/config.h"
#include "xfer/transports/rdma/verbs.h"

namespace mc::xfer::rdma {

struct PortFacts {
  uint8_t port = 1;
  bool up = false;  // active, and it has an address
  bool ethernet = false;
  bool global = false;  // InfiniBand that wants a global route on all packets
  uint16_t pkey_index = 0;
  int gid_index = 0;
  uint32_t lid = 0, mtu = 0;  // mtu: an ibv_mtu
  uint64_t speed_mbit = 0;
  std::string gid = std::string(16, '\0');
  // Whether connections made with `other` still hold.
  bool same_path(const PortFacts& other) const {
    return port == other.port && ethernet == other.ethernet && global == other.global &&
           pkey_index == other.pkey_index && gid_index == other.gid_index && lid == other.lid &&
           mtu == other.mtu && gid == other.gid;
  }
};

// Of the first port that is active, else of the first. Errors: kInvalid: it has not the GID or the
// partition key that the configuration names.
Result<PortFacts> read_port(const Verbs& verbs, ibv_context* context, const std::string& device,
                            const RdmaConfig& config);

}  // namespace mc::xfer::rdma
