// The network interfaces of this machine: the local ends of rails, and the advertised addresses.
//
// Thread: values; system_nics() from any thread.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/address.h"
#include "xfer/core/messages.h"
#include "xfer/rails/pairing.h"

namespace mc::xfer {

// Every address of an interface that is up, loopback included; IPv6 link-local addresses are left
// out (they need a zone that peers do not know). Empty where the kernel refuses.
std::vector<Nic> system_nics();
using NicSource = std::function<std::vector<Nic>()>;  // system_nics, or a test's

// Those whose interface is named in `only`, in that order; all when it is empty. Loopback always
// stays, last. kNotFound names what there is instead.
Result<std::vector<Nic>> choose_nics(std::vector<Nic> all, const std::vector<std::string>& only);

// The addresses by which a socket bound to `bound` is reached, and the NIC of each: itself, or,
// bound to all addresses, one a NIC and loopback last (it serves peers on this host).
struct Advertised {
  std::string address;  // "host:port"
  NicInfo nic;
};
std::vector<Advertised> advertise(const io::Address& bound, const std::vector<Nic>& nics);

// Which network stack this process lives in: a loopback address reaches peers with the same.
std::string net_id();

}  // namespace mc::xfer
