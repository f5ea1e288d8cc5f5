#include "topo/model/tiers.h"

#include <doctest/doctest.h>

namespace mc::topo {
namespace {

using Names = std::vector<std::string>;

RdmaDevice nic(std::string name, int numa, Names bridges, std::string state = "ACTIVE") {
  return {.name = std::move(name),
          .at = {.pci = "0000:01:00.0", .numa = numa, .bridges = std::move(bridges)},
          .ports = {{.number = 1, .state = std::move(state), .link_layer = {}, .rate = {}}}};
}

Gpu gpu(int numa, Names bridges) {
  return {.name = "gpu",
          .at = {.pci = "0000:02:00.0", .numa = numa, .bridges = std::move(bridges)}};
}

Machine machine(std::vector<Gpu> gpus, std::vector<RdmaDevice> rdma,
                std::vector<NumaNode> nodes = {{.id = 0, .cpus = {0}}, {.id = 1, .cpus = {1}}}) {
  return {.source = "test",
          .nodes = std::move(nodes),
          .gpus = std::move(gpus),
          .rdma = std::move(rdma),
          .nets = {}};
}

TEST_CASE("the NIC below the GPU's own switch is tier 1, others of the node tier 2") {
  const auto table =
      tier_table(machine({gpu(0, {"pci0000:00", "root", "switch"})},
                         {nic("near", 0, {"pci0000:00", "root", "switch"}),
                          nic("root-only", 0, {"pci0000:00", "root"}),
                          nic("apart", 0, {"pci0000:80"}), nic("other", 1, {"pci0000:c0"})}));
  REQUIRE(table.gpus.size() == 1);
  CHECK(table.gpus[0].tiers == Tiers{Names{"near"}, Names{"root-only", "apart"}, Names{"other"}});
  CHECK(table.gpus[0].bridge == "switch");
}

TEST_CASE("a NIC of another node is tier 3 even below the GPU's own switch") {
  const auto table = tier_table(
      machine({gpu(0, {"pci0000:00", "switch"})},
              {nic("misplaced", 1, {"pci0000:00", "switch"}), nic("local", 0, {"pci0000:80"})}));
  CHECK(table.gpus[0].tiers == Tiers{Names{"local"}, Names{}, Names{"misplaced"}});
  CHECK(table.gpus[0].bridge.empty());
}

TEST_CASE("a shared host bridge counts as a shared ancestor") {
  const auto table = tier_table(
      machine({gpu(0, {"pci0000:00", "a"})}, {nic("same-host-bridge", 0, {"pci0000:00", "b"}),
                                              nic("other-host-bridge", 0, {"pci0000:40", "a"})}));
  CHECK(table.gpus[0].tiers == Tiers{Names{"same-host-bridge"}, Names{"other-host-bridge"}, {}});
}

TEST_CASE("when nothing of the node shares a bridge with the GPU, the whole node is tier 1") {
  const auto table = tier_table(
      machine({gpu(8, {"pci0004:00", "x"})},
              {nic("a", 8, {"pci0033:00", "x"}), nic("b", 8, {}), nic("c", 0, {"pci0003:00", "x"})},
              {{.id = 0, .cpus = {0}}, {.id = 8, .cpus = {1}}}));
  CHECK(table.gpus[0].tiers == Tiers{Names{"a", "b"}, Names{}, Names{"c"}});
}

TEST_CASE("a GPU on a node without NICs has only tier 3") {
  const auto table =
      tier_table(machine({gpu(1, {"pci0000:00", "s"})}, {nic("a", 0, {"pci0000:00", "s"})}));
  CHECK(table.gpus[0].tiers == Tiers{Names{}, Names{}, Names{"a"}});
}

TEST_CASE("two RDMA devices of one function share a tier") {
  const auto table = tier_table(
      machine({gpu(0, {"h", "s"})}, {nic("mlx5_0", 0, {"h", "s"}), nic("roce0", 0, {"h", "s"})}));
  CHECK(table.gpus[0].tiers == Tiers{Names{"mlx5_0", "roce0"}, Names{}, Names{}});
}

TEST_CASE("a device without an active port is in no tier and the reason is kept") {
  auto two_ports = nic("two-ports", 0, {"h"}, "DOWN");
  two_ports.ports.push_back({.number = 2, .state = "ACTIVE", .link_layer = {}, .rate = {}});
  auto no_port = nic("no-port", 0, {"h"});
  no_port.ports.clear();
  const auto table = tier_table(
      machine({gpu(0, {"h", "s"})}, {nic("down", 0, {"h", "s"}, "DOWN"), two_ports, no_port}));
  CHECK(table.gpus[0].tiers == Tiers{Names{"two-ports"}, Names{}, Names{}});
  REQUIRE(table.left_out.size() == 2);
  CHECK(table.left_out[0].name == "down");
  CHECK(table.left_out[0].why == "no active port (port 1 is DOWN)");
  CHECK(table.left_out[1].why == "it has no port");
}

TEST_CASE("NUMA nodes with CPUs have tiers of their own, memory-only ones are listed apart") {
  const auto table = tier_table(
      machine({}, {nic("a", 1, {}), nic("b", 5, {}), nic("nowhere", kUnknownNode, {})},
              {{.id = 1, .cpus = {0}}, {.id = 3, .cpus = {}}, {.id = 5, .cpus = {2, 3}}}));
  REQUIRE(table.nodes.size() == 2);
  CHECK(table.nodes[0].node == 1);
  CHECK(table.nodes[0].tiers == Tiers{Names{"a"}, Names{}, Names{"b", "nowhere"}});
  CHECK(table.nodes[1].node == 5);
  CHECK(table.nodes[1].tiers == Tiers{Names{"b"}, Names{}, Names{"a", "nowhere"}});
  CHECK(table.memory_only_nodes == std::vector<int>{3});
}

TEST_CASE("software RDMA is near to nothing and left out, a platform device of a node is not") {
  auto software = nic("rxe0", kUnknownNode, {}), platform = nic("hns_0", 1, {});
  software.at.pci.clear();
  platform.at.pci.clear();
  const auto table = tier_table(machine({gpu(0, {"h"})}, {software, platform}));
  CHECK(table.gpus[0].tiers == Tiers{Names{}, Names{}, Names{"hns_0"}});
  CHECK(table.nodes[1].tiers == Tiers{Names{"hns_0"}, Names{}, Names{}});
  REQUIRE(table.left_out.size() == 1);
  CHECK(table.left_out[0].name == "rxe0");
}

TEST_CASE("a GPU and NICs that all lack a NUMA node are ranked by their bridges") {
  const auto table = tier_table(machine({gpu(kUnknownNode, {"h", "s"})},
                                        {nic("near", kUnknownNode, {"h", "s"}),
                                         nic("far", kUnknownNode, {"k"}), nic("b", 0, {"h"})}));
  CHECK(table.gpus[0].tiers == Tiers{Names{"near"}, Names{"far"}, Names{"b"}});
}

TEST_CASE("every usable device is in exactly one tier of every row") {
  const auto table = tier_table(machine(
      {gpu(0, {"h", "s"}), gpu(1, {}), gpu(kUnknownNode, {"k"})},
      {nic("a", 0, {"h"}), nic("b", 0, {"h", "s"}), nic("c", 1, {"k"}), nic("d", -1, {"k"})}));
  for (const GpuTiers& row : table.gpus) {
    CHECK(row.tiers[0].size() + row.tiers[1].size() + row.tiers[2].size() == 4);
  }
}

}  // namespace
}  // namespace mc::topo
