#include "xfer/transports/tcp/address_pair.h"

#include <doctest/doctest.h>

using namespace mc;
using namespace mc::xfer;

namespace {

PeerPtr peer_at(std::vector<std::string> addresses, bool same_net) {
  auto peer = std::make_shared<Peer>();
  peer->descriptor.node = "node-b";
  peer->descriptor.tcp = std::move(addresses);
  peer->descriptor.nics.resize(peer->descriptor.tcp.size());
  peer->same_net = same_net;
  return peer;
}

}  // namespace

TEST_SUITE("xfer/route") {
  TEST_CASE("a peer on the same network stack is reached over loopback alone") {
    const PeerPtr peer = peer_at({"10.0.0.1:70", "10.0.1.1:70", "127.0.0.1:70"}, true);
    auto routes = tcp::routes_to(*peer, {});
    REQUIRE(routes.has_value());
    REQUIRE(routes->size() == 1);
    CHECK(routes->front().remote == "127.0.0.1:70");
    CHECK(routes->front().bind.empty());
  }

  TEST_CASE("loopback addresses are no way to another host") {
    auto routes = tcp::routes_to(*peer_at({"10.0.0.1:70", "127.0.0.1:70"}, false), {});
    REQUIRE(routes.has_value());
    REQUIRE(routes->size() == 1);
    CHECK(routes->front().remote == "10.0.0.1:70");
    auto none = tcp::routes_to(*peer_at({"127.0.0.1:70"}, false), {});
    REQUIRE_FALSE(none.has_value());
    CHECK(none.error().code == Code::kUnavailable);
    for (const char* word : {"node-b", "127.0.0.1:70", "--data"}) {
      CAPTURE(word);
      CHECK(none.error().what.find(word) != std::string::npos);
    }
  }

  TEST_CASE("NICs on one subnet are a rail; every other pair serves where the rail map fails") {
    std::vector<Nic> local(3);
    local[0].name = "lo", local[0].address = "127.0.0.1";
    local[1].name = "eth0", local[1].address = "10.0.0.1", local[1].prefix_bits = 24;
    local[2].name = "eth1", local[2].address = "10.0.1.1", local[2].prefix_bits = 24;
    auto owner = peer_at({"10.0.1.2:70", "10.0.0.2:70", "127.0.0.1:70"}, false);
    auto& nics = std::const_pointer_cast<Peer>(owner)->descriptor.nics;
    for (NicInfo& nic : nics) nic.prefix_bits = 24;
    auto routes = tcp::routes_to(*owner, local);
    REQUIRE(routes.has_value());
    REQUIRE(routes->size() == 4);
    for (size_t i = 0; i < 4; ++i) {
      const tcp::AddressPair& r = (*routes)[i];
      CAPTURE(r.bind);
      CAPTURE(r.remote);
      const bool same = r.bind.substr(0, 7) == r.remote.substr(0, 7);
      CHECK(r.info.mapped == same);
      CHECK(r.info.mapped == (i < 2));
      CHECK(r.device == (r.bind == "10.0.0.1" ? "eth0" : "eth1"));
    }
  }
}
