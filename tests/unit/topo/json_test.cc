#include "topo/formats/json.h"

#include <doctest/doctest.h>

#include "base/json.h"
#include "base/random.h"
#include "topo/report/diff.h"
#include "topo/report/render.h"

namespace mc::topo {
namespace {

Machine machine() {
  Machine m;
  m.source = "test";
  m.nodes = {{.id = 1, .cpus = {0, 1, 4}, .memory_bytes = 4096}, {.id = 3, .cpus = {}}};
  m.gpus = {{.name = "AMD 1002:74a1",
             .at = {.pci = "0000:0c:00.0",
                    .numa = 1,
                    .bridges = {"pci0000:04", "0000:05:00.0"},
                    .link = {.gt_per_s = 32, .gt_per_s_max = 32, .width = 16, .width_max = 16}},
             .peers = {{.pci = "0000:15:00.0", .type = "xGMI", .links = 2}},
             .driver = "amdgpu"}};
  m.rdma = {{.name = "mlx5_0",
             .at = {.pci = "0000:07:00.0", .numa = 1, .bridges = {"pci0000:04", "0000:05:00.0"}},
             .ports = {{.number = 1,
                        .state = "ACTIVE",
                        .link_layer = "Ethernet",
                        .rate = "400 Gb/sec (4X)",
                        .gids = {{.index = 3, .value = "a", .type = "RoCE v2", .netdev = "e"}}}},
             .driver = "mlx5_core",
             .netdev = "e"},
            {.name = "mlx5_1",
             .at = {.pci = "0000:87:00.0", .numa = kUnknownNode},
             .ports = {{.number = 1, .state = "ACTIVE"}}}};
  m.nets = {{.name = "e", .at = {}, .addresses = {"::1"}, .speed_mbit = 10, .up = true, .mtu = 9}};
  m.disks = {{.name = "nvme0", .at = {}, .model = "fast", .bytes = 1u << 20}};
  return m;
}

TEST_CASE("a machine comes back from its JSON as it was") {
  const auto back = machine_from_json(machine_json(machine()), "there");
  REQUIRE(back);
  CHECK(back->source == "there");
  Json json = machine_json(*back);
  json["source"] = "test";
  CHECK(json == machine_json(machine()));
}

TEST_CASE("members of a wrong kind are refused by name, absent ones are unknown") {
  const auto error = [](const char* text) {
    const auto m = machine_from_json(parse_json(text).value(), "f");
    return m ? std::string() : m.error().what;
  };
  CHECK(error("[]").find("not a machine") != std::string::npos);
  CHECK(error(R"({"gpus":[]})").find("not a machine") != std::string::npos);
  CHECK(error(R"({"numa_nodes":{}})").find("numa_nodes") != std::string::npos);
  CHECK(error(R"({"numa_nodes":[7]})").find("numa_nodes[0]") != std::string::npos);
  CHECK(error(R"({"numa_nodes":[{"numa":-4}]})").find("\"numa\"") != std::string::npos);
  CHECK(error(R"({"numa_nodes":[{"numa":1e99}]})").find("\"numa\"") != std::string::npos);
  CHECK(error(R"({"numa_nodes":[],"rdma":[{"name":5}]})").find("rdma[0]") != std::string::npos);
  CHECK(error(R"({"numa_nodes":[],"rdma":[{"ports":[{"port":999}]}]})").find("ports[0]") !=
        std::string::npos);
  Json deep = machine_json(machine());
  deep["gpus"][0]["bridges"] = std::vector<std::string>(10'000, "b");
  CHECK_FALSE(machine_from_json(deep, "f"));
  const auto small = machine_from_json(parse_json(R"({"numa_nodes":[],"gpus":[{}]})").value(), "f");
  REQUIRE(small);
  CHECK(small->gpus[0].at.numa == kUnknownNode);
}

TEST_CASE("damaged JSON gives an error or a machine, never a crash") {
  const std::string whole = dump_json(machine_json(machine()));
  Random random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole;
    for (int n = 0; n < 3; ++n) text[random.below(text.size())] = "{}[],:\"-9e."[random.below(11)];
    const auto json = parse_json(text);
    if (json) (void)machine_from_json(*json, "f");
  }
}

TEST_CASE("the reference's matrix: tier 1 is preferred, tiers 2 and 3 are available") {
  const Json matrix = reference_matrix_json(tier_table(machine()));
  CHECK(matrix == parse_json(R"({"cpu:1": [["mlx5_0"], ["mlx5_1"]],
                                 "cuda:0": [["mlx5_0"], ["mlx5_1"]]})")
                      .value());
}

TEST_CASE("our matrix keeps three tiers and where each NIC is") {
  Machine m = machine();
  m.rdma[1].ports[0].state = "DOWN";
  const Json matrix = matrix_json(m, tier_table(m));
  CHECK(matrix["locations"]["cuda:0"]["tiers"] ==
        Json::array({{"mlx5_0"}, Json::array(), Json::array()}));
  CHECK(matrix["locations"]["cuda:0"]["shared_bridge"] == "0000:05:00.0");
  CHECK(matrix["nics"]["mlx5_1"]["numa"].is_null());
  CHECK(matrix["left_out"]["mlx5_1"] == "no active port (port 1 is DOWN)");
  const std::string text = matrix_text(m, tier_table(m));
  CHECK(text.find("mlx5_0") != std::string::npos);
  CHECK(text.find("cuda:0") != std::string::npos);
}

TEST_CASE("differences: devices come and go, facts change, and tiers with them") {
  const Machine before = machine();
  CHECK(differences(before, before).empty());
  CHECK(changes_text({}) == "no difference\n");
  Machine after = before;
  after.rdma[0].ports[0].state = "DOWN";
  after.rdma.pop_back();
  after.gpus[0].at.link.width = 8;
  after.nets[0].driver = "tg3";  // not known before: no change
  const std::string text = changes_text(differences(before, after));
  CHECK(text.find("~ rdma mlx5_0: port 1 state: ACTIVE -> DOWN\n") != std::string::npos);
  CHECK(text.find("~ rdma mlx5_0: tier for node 1: 1 -> -\n") != std::string::npos);
  CHECK(text.find("- rdma mlx5_1\n") != std::string::npos);
  CHECK(text.find("~ gpu 0000:0c:00.0: PCIe link: 32 GT/s x16 -> 32 GT/s x8\n") !=
        std::string::npos);
  CHECK(text.find("tg3") == std::string::npos);
}

}  // namespace
}  // namespace mc::topo
