// Which NICs carry bytes between machines of several NUMA nodes: those near both ends' memory.
#include <algorithm>
#include <map>

#include "tests/conformance/rdma_traffic.h"
#include "tests/unit/topo/recorded.h"

#ifdef MC_TEST_EMULATOR

using namespace mc;
using namespace mc::xfer;
using namespace mc::xfer::rdma_tests;
using namespace std::chrono_literals;

namespace rdma_topology_test {
namespace {

// Of two sockets, with a NIC on each.
struct TwoSockets : topo::Recorded {
  TwoSockets(const char* name, const std::string& first, const std::string& second)
      : topo::Recorded(name) {
    for (const char* node : {"0", "1"}) {
      file(std::string("devices/system/node/node") + node + "/cpulist", node);
      const std::string root = node[0] == '0' ? "pci0000:00" : "pci0000:80";
      const std::string pci = node[0] == '0' ? "0000:01:00.0" : "0000:81:00.0";
      function(root, pci, node, "0x020700");
      rdma(root + "/" + pci, node[0] == '0' ? first : second, "4: ACTIVE");
    }
  }
};

}  // namespace

TEST_SUITE("rdma") {
  TEST_CASE("bytes between two machines of two sockets go by the NICs near both ends (F46)") {
    if (skipped()) return;
    const Healed healed;
    const TwoSockets here("mc-sockets-here", "emu0", "emu1"),
        there("mc-sockets-there", "emu2", "emu3");
    for (uint32_t nic = 0; nic < TestFabric::kNics; ++nic) emu::set_rate(nics(), nic, 400'000'000);
    // This machine has one node: the peer's memory is on the other by its own word.
    for (const char* node : {"cpu:0", "cpu:1"}) {
      CAPTURE(node);
      Metrics metrics;
      EngineOptions o = over_rdma();
      o.node = "owner";
      o.nics = {"emu2", "emu3"};
      o.sysfs = there.path();
      const auto owner = Engine::open(kClock, o, metrics);
      REQUIRE_MESSAGE(owner.has_value(), (owner ? "" : owner.error().what));
      o.node = "user";
      o.nics = {"emu0", "emu1"};
      o.sysfs = here.path();
      const auto user = Engine::open(kClock, o, metrics);
      REQUIRE_MESSAGE(user.has_value(), (user ? "" : user.error().what));
      const auto remote = (*owner)->allocate(kMiB, true, node);
      REQUIRE_MESSAGE(remote.has_value(), (remote ? "" : remote.error().what));
      const Memory local = *(*user)->allocate(kMiB);
      fill(local.bytes(), 46);
      const auto segment = (*user)->open_segment((*owner)->describe());
      REQUIRE(segment.has_value());
      Request r;
      r.op = Op::kWrite;
      r.local = local.data();
      r.segment = *segment;
      r.offset = remote->offset();
      r.bytes = kMiB;
      for (int i = 0; i < 100; ++i) REQUIRE((*user)->transfer_sync(r, 20s).has_value());
      CHECK(digest(remote->bytes()) == digest(local.bytes()));
      const auto paths = (*user)->paths(*segment, remote->offset(), Op::kWrite, kMiB, local.data());
      REQUIRE(paths.has_value());
      const auto rdma = std::find_if(paths->begin(), paths->end(),
                                     [](const Path& p) { return p.transport == "rdma"; });
      REQUIRE(rdma != paths->end());
      CHECK(rdma->memory.there.node == node[4] - '0');
      const std::string near = node[4] == '0' ? "emu2" : "emu3";
      std::map<std::string, uint64_t> ours, theirs;
      for (const RailView& rail : rdma->rails) {
        CHECK(rail.tier == (rail.info.local == "emu0" && rail.info.remote == near ? 1 : 3));
        ours[rail.info.local] += rail.bytes;
        theirs[rail.info.remote] += rail.bytes;
      }
      CHECK(ours["emu0"] > 2 * ours["emu1"]);
      CHECK(theirs[near] > 2 * theirs[near == "emu2" ? "emu3" : "emu2"]);
    }
  }
}

}  // namespace rdma_topology_test

#endif
