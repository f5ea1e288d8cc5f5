#include "topo/discover/discover.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/topo/recorded.h"
#include "topo/discover/sysfs.h"
#include "topo/model/numbers.h"

namespace mc::topo {
namespace {
TEST_CASE("CPU lists have ranges, and nonsense is refused with the file's name") {
  CHECK(parse_cpu_list("0-2,8", "f").value() == std::vector<int>{0, 1, 2, 8});
  CHECK(parse_cpu_list("", "f").value().empty());
  CHECK(parse_cpu_list("3,1-3", "f").value() == std::vector<int>{1, 2, 3});
  for (const char* bad : {"x", "3-1", "-1", "1-", "0-4000000000", "0-70000", "1,,2", "0 1"}) {
    INFO(bad);
    const auto cpus = parse_cpu_list(bad, "node0/cpulist");
    REQUIRE_FALSE(cpus);
    CHECK(cpus.error().code == Code::kInvalid);
    CHECK(cpus.error().what.find("node0/cpulist") != std::string::npos);
  }
}

TEST_CASE("names are in the order people count") {
  std::vector<std::string> names{"mlx5_10", "mlx5_9", "a2b", "mlx5_09", "a2", "mlx5_", "b", "a10"};
  std::sort(names.begin(), names.end(), in_natural_order);
  CHECK(names ==
        std::vector<std::string>{"a2", "a2b", "a10", "b", "mlx5_", "mlx5_09", "mlx5_9", "mlx5_10"});
}

TEST_CASE(
    "a recorded machine: gaps in NUMA ids, numa_node over local_cpulist, two devices on one "
    "function, a domain of five digits, a virtual device") {
  Recorded recorded("mc-topo-traps");
  recorded.file("devices/system/node/node1/cpulist", "0-1");
  recorded.file("devices/system/node/node1/meminfo", "Node 1 MemTotal:       2048 kB");
  recorded.file("devices/system/node/node7/cpulist", "");
  recorded.function("pci10000:e0/10000:e0:01.0", "10000:e1:00.0", "7", "0x020700");
  recorded.file("devices/pci10000:e0/10000:e0:01.0/10000:e1:00.0/local_cpulist", "0-1");
  recorded.rdma("pci10000:e0/10000:e0:01.0/10000:e1:00.0", "roce9", "4: ACTIVE");
  recorded.rdma("pci10000:e0/10000:e0:01.0/10000:e1:00.0", "roce9b", "1: DOWN");
  recorded.rdma("virtual", "rxe0", "4: ACTIVE");
  recorded.function("pci0000:00", "0000:00:02.0", "1", "0x030200", "0x10de");
  recorded.function("pci0000:00", "0000:00:03.0", "1", "0x030000", "0x1a03");  // console VGA

  const auto machine = discover_sysfs(recorded.path());
  REQUIRE(machine);
  REQUIRE(machine->nodes.size() == 2);
  CHECK(machine->nodes[0].id == 1);
  CHECK(machine->nodes[0].memory_bytes == 2048 * 1024);
  CHECK(machine->nodes[1].id == 7);
  CHECK(machine->nodes[1].cpus.empty());
  REQUIRE(machine->gpus.size() == 1);
  CHECK(machine->gpus[0].at.pci == "0000:00:02.0");
  CHECK(machine->gpus[0].at.bridges == std::vector<std::string>{"pci0000:00"});
  REQUIRE(machine->rdma.size() == 3);
  CHECK(machine->rdma[0].at.pci == "10000:e1:00.0");
  CHECK(machine->rdma[0].at.numa == 7);
  CHECK(machine->rdma[0].at.bridges == std::vector<std::string>{"pci10000:e0", "10000:e0:01.0"});
  CHECK(machine->rdma[0].ports[0].active());
  CHECK(machine->rdma[1].at.pci == machine->rdma[0].at.pci);
  CHECK_FALSE(machine->rdma[1].ports[0].active());
  CHECK(machine->rdma[2].at.pci.empty());
  CHECK(machine->rdma[2].at.numa == kUnknownNode);
}

TEST_CASE("a device of unknown node on a machine with one node is on that node") {
  Recorded recorded("mc-topo-one-node");
  recorded.file("devices/system/node/node0/cpulist", "0");
  recorded.function("pci0000:00", "0000:00:02.0", "-1", "0x020700");
  recorded.rdma("pci0000:00/0000:00:02.0", "mlx5_0", "4: ACTIVE");
  const auto machine = discover_sysfs(recorded.path());
  REQUIRE(machine);
  REQUIRE(machine->rdma.size() == 1);
  CHECK(machine->rdma[0].at.numa == 0);
}

TEST_CASE("links that leave the recorded tree are not followed") {
  Recorded recorded("mc-topo-escape");
  recorded.link("bus/pci/devices/0000:00:02.0", "/etc");
  recorded.link("class/net", "/sys/class/net");
  const auto machine = discover_sysfs(recorded.path());
  REQUIRE(machine);
  CHECK(machine->nets.empty());
}

TEST_CASE("a folder that is no recorded sysfs is refused with the remedy") {
  const auto absent = discover_sysfs("/nonexistent/sysfs");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == Code::kNotFound);
  const auto wrong = discover_sysfs("/etc");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().code == Code::kInvalid);
  CHECK(wrong.error().what.find("the folder that holds sys/") != std::string::npos);
}

TEST_CASE("hwloc and our own reader agree about this machine") {
  const auto live = discover_live();
  const auto read = discover_kernel();
  REQUIRE(live);
  REQUIRE(read);
  CHECK_FALSE(live->nodes.empty());
  for (const NumaNode& node : live->nodes) {
    CHECK(std::any_of(read->nodes.begin(), read->nodes.end(),
                      [&](const NumaNode& n) { return n.id == node.id; }));
  }
  REQUIRE(live->gpus.size() == read->gpus.size());
  for (size_t i = 0; i < live->gpus.size(); ++i) {
    CHECK(live->gpus[i].at.pci == read->gpus[i].at.pci);
    CHECK(live->gpus[i].at.bridges == read->gpus[i].at.bridges);
    CHECK(live->gpus[i].name == read->gpus[i].name);
  }
  REQUIRE(live->nets.size() == read->nets.size());
  for (size_t i = 0; i < live->nets.size(); ++i) {
    CHECK(live->nets[i].at.pci == read->nets[i].at.pci);
    CHECK(live->nets[i].at.bridges == read->nets[i].at.bridges);
  }
  const auto loopback = std::find_if(live->nets.begin(), live->nets.end(),
                                     [](const NetDevice& n) { return n.name == "lo"; });
  if (loopback != live->nets.end() && loopback->up) {
    CHECK(std::count(loopback->addresses.begin(), loopback->addresses.end(), "127.0.0.1") == 1);
  }
}

}  // namespace
}  // namespace mc::topo
