#include "xfer/transports/tcp/address_pair.h"

#include <algorithm>

#include "io/address.h"

namespace mc::xfer::tcp {
namespace {

struct Remote {
  std::string text;  // as advertised
  Nic nic;
};

// The advertised addresses that can be parsed; loopback ones apart.
void sort_addresses(const SegmentDescriptor& d, std::vector<Remote>* wide,
                    std::vector<Remote>* loopback) {
  for (size_t i = 0; i < d.tcp.size(); ++i) {
    const auto address = io::parse_address(d.tcp[i]);
    if (!address) continue;
    const NicInfo info = i < d.nics.size() ? d.nics[i] : NicInfo{};
    const Nic nic{info.name, address->host, info.prefix_bits, info.numa, info.gpu, info.speed_mbit};
    (io::is_loopback(address->host) ? loopback : wide)->push_back({d.tcp[i], nic});
  }
}

AddressPair direct(const Remote& remote) {
  return {"", "", remote.text, {remote.nic.name, remote.text, -1, true}};
}

// Every pair of a local NIC and a remote one; those of the rail map first.
std::vector<AddressPair> paired(const std::vector<Nic>& local, const std::vector<Remote>& remote) {
  std::vector<Nic> here, there;
  for (const Nic& nic : local)
    if (!io::is_loopback(nic.address)) here.push_back(nic);
  for (const Remote& r : remote) there.push_back(r.nic);
  std::vector<AddressPair> out;
  for (const RailPair& p : pair_rails(here, there)) {
    const Nic& nic = here[p.local];
    const std::string& to = remote[p.remote].text;
    out.push_back({nic.address, nic.name, to, {nic.name, to, nic.numa, p.mapped}});
  }
  std::stable_partition(out.begin(), out.end(), [](const AddressPair& r) { return r.info.mapped; });
  return out;
}

}  // namespace

Result<std::vector<AddressPair>> routes_to(const Peer& peer, const std::vector<Nic>& local) {
  const SegmentDescriptor& d = peer.descriptor;
  std::vector<Remote> wide, loopback;
  sort_addresses(d, &wide, &loopback);
  std::vector<AddressPair> out;
  if (peer.same_net) {
    for (const Remote& remote : loopback) out.push_back(direct(remote));
    // Its other addresses lead through loopback as well: one of them is as good as all.
    if (out.empty() && !wide.empty()) out.push_back(direct(wide.front()));
  } else {
    out = paired(local, wide);
    if (out.empty())  // nothing is known of our own NICs
      for (const Remote& remote : wide) out.push_back(direct(remote));
  }
  if (out.size() > kRoutesMax) out.resize(kRoutesMax);
  if (!out.empty()) return out;
  if (d.tcp.empty()) return fail(Code::kUnavailable, "%s offers no data address", d.node.c_str());
  return fail(Code::kUnavailable,
              "%s advertises only %s, which other hosts cannot reach: start it with --data "
              "0.0.0.0:0 or an address of its network",
              d.node.c_str(), d.tcp.front().c_str());
}

}  // namespace mc::xfer::tcp
