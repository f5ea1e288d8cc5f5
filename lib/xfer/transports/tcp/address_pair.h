// Pairs local addresses with the addresses that a peer advertises over tcp, one rail each.
//
// Thread: values.
#pragma once
#include <string>
#include <vector>

#include "xfer/core/transport.h"
#include "xfer/rails/pairing.h"
#include "xfer/rails/rail_scheduler.h"

namespace mc::xfer::tcp {

struct AddressPair {
  std::string bind;    // local address to connect from; "": the kernel's choice
  std::string device;  // its interface
  std::string remote;  // "host:port", as advertised
  RailInfo info;
};

// Peers with the same network stack are reached over loopback where they listen there; others over
// every pair of a local NIC and an advertised address, at most kRoutesMax, those of the rail map
// first. kUnavailable says what the peer would have to advertise.
inline constexpr size_t kRoutesMax = 64;
Result<std::vector<AddressPair>> routes_to(const Peer& peer, const std::vector<Nic>& local);

}  // namespace mc::xfer::tcp
