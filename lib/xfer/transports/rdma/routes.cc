#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "xfer/rails/pairing.h"
#include "xfer/transports/rdma/peer_connections.h"

namespace mc::xfer::rdma {
namespace {

constexpr size_t kRoutesMax = 64;

// The IPv4 address within a RoCE GID, or the GID as it is written.
std::string text_of(const std::string& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  if (gid.size() != 16) return {};
  static const char mapped[] = "\0\0\0\0\0\0\0\0\0\0\xff\xff";
  if (std::memcmp(gid.data(), mapped, 12) == 0)
    ::inet_ntop(AF_INET, gid.data() + 12, text, sizeof text);
  else
    ::inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

// From each of its machine's GPUs; one that is none leaves all of them unknown.
std::vector<uint8_t> tiers_of(const RdmaNic& nic) {
  std::vector<uint8_t> out;
  for (const uint32_t tier : nic.gpu_tiers) {
    if (tier > 3) return {};
    out.push_back(static_cast<uint8_t>(tier));
  }
  return out;
}

}  // namespace

Result<std::vector<NicPair>> routes_to(const Peer& peer,
                                       const std::vector<std::unique_ptr<Nic>>& nics,
                                       const NicTiers& tiers) {
  const auto& theirs = peer.descriptor.rdma;
  std::vector<xfer::Nic> here, there;
  std::vector<bool> ethernet;
  for (const auto& nic : nics) {
    const DevicePtr device = nic->device();
    const PortFacts port = device == nullptr ? PortFacts() : *device->port();
    here.push_back({nic->name, device == nullptr ? "" : text_of(port.gid), 0, nic->numa,
                    tiers.gpu_beside(nic->name), port.speed_mbit});
    ethernet.push_back(port.ethernet);
  }
  for (const RdmaNic& nic : theirs)
    there.push_back(
        {nic.nic.name, text_of(nic.gid.bytes), 0, nic.nic.numa, nic.nic.gpu, nic.nic.speed_mbit});
  std::vector<NicPair> out;
  for (const RailPair& p : pair_rails(here, there)) {
    // A device that is away just now may come back as either.
    const bool known = nics[p.local]->device() != nullptr && theirs[p.remote].epoch != 0;
    if (known && ethernet[p.local] != theirs[p.remote].ethernet) continue;
    out.push_back(
        {p.local,
         p.remote,
         {here[p.local].name, there[p.remote].name, here[p.local].numa, p.mapped,
          tiers.of(here[p.local].name), there[p.remote].numa, tiers_of(theirs[p.remote])}});
  }
  std::stable_partition(out.begin(), out.end(), [](const NicPair& r) { return r.info.mapped; });
  if (out.size() > kRoutesMax) out.resize(kRoutesMax);
  if (!out.empty()) return out;
  return fail(Code::kUnavailable, "no RDMA device of %s is of the kind of ours",
              peer.descriptor.node.c_str());
}

}  // namespace mc::xfer::rdma
