// Lists the NICs of a machine as ends of rails, and pairs two machines' NICs.
#pragma once
#include <string>
#include <vector>

#include "topo/model/model.h"
#include "xfer/rails/pairing.h"

namespace mc::topo {

// Usable RDMA devices; network devices that are up when there is none.
std::vector<xfer::Nic> rail_ends(const Machine& machine);

struct Rails {
  std::vector<xfer::Nic> local, remote;
  std::vector<xfer::RailPair> pairs;
};
Rails pair_machines(const Machine& local, const Machine& remote);

}  // namespace mc::topo
