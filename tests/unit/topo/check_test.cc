#include "topo/report/check.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/topo/recorded.h"
#include "topo/discover/capture.h"
#include "topo/discover/discover.h"
#include "topo/report/diff.h"

namespace mc::topo {
namespace {

RdmaDevice nic(const std::string& name, const std::string& pci, int numa = 0) {
  RdmaDevice device;
  device.name = name;
  device.at = {.pci = pci, .numa = numa, .bridges = {"pci0000:00", "0000:00:01.0"}};
  device.driver = "mlx5_core";
  device.netdev = "net_" + name;
  device.ports = {{.number = 1,
                   .state = "ACTIVE",
                   .link_layer = "Ethernet",
                   .rate = "400 Gb/sec (4X)",
                   .gids = {{.index = 3, .value = "::1", .type = "RoCE v2"}}}};
  return device;
}

Machine healthy() {
  Machine m;
  m.source = "test";
  m.nodes = {{.id = 0, .cpus = {0}}, {.id = 1, .cpus = {1}}};
  m.gpus = {{.name = "NVIDIA 10de:2330",
             .at = {.pci = "0000:02:00.0", .numa = 0, .bridges = {"pci0000:00", "0000:00:01.0"}},
             .driver = "nvidia"}};
  m.rdma = {nic("mlx5_0", "0000:03:00.0"), nic("mlx5_1", "0000:04:00.0")};
  for (const RdmaDevice& d : m.rdma) m.nets.push_back({.name = d.netdev, .up = true, .mtu = 9000});
  return m;
}

Host sound() {
  Host h;
  h.memlock_bytes = kUnlimited;
  h.modules = std::set<std::string>{"nvidia_peermem", "mlx5_ib", "ib_uverbs"};
  h.huge_pages = {{.page_bytes = 2u << 20, .total = 512, .free = 512}};
  h.kernel = "6.1.0";
  h.command_line = "quiet iommu=pt";
  h.iommu_groups = 40;
  h.uverbs = {"mlx5_0", "mlx5_1"};
  return h;
}

// The severities and ids of what is found.
std::vector<std::string> found(const Machine& machine, const Host& host) {
  std::vector<std::string> out;
  for (const Finding& f : examine(machine, host)) {
    CHECK_FALSE(f.where.empty());
    CHECK_FALSE(f.what.empty());
    CHECK_FALSE(f.remedy.empty());
    out.push_back((f.severity == Severity::kWrong ? "wrong " : "note ") + f.id);
  }
  return out;
}

using Ids = std::vector<std::string>;

TEST_CASE("a healthy machine has no findings") { CHECK(found(healthy(), sound()).empty()); }

TEST_CASE("a port that is down, and one that no subnet manager configured") {
  Machine m = healthy();
  m.rdma[0].ports[0].state = "DOWN";
  m.rdma[1].ports[0].state = "INIT";
  CHECK(found(m, sound()) == Ids{"wrong port-down", "wrong port-not-active"});
}

TEST_CASE("a PCIe link narrower or slower than the card; an idle GPU may be slow") {
  Machine m = healthy();
  const PciLink slow{.gt_per_s = 8, .gt_per_s_max = 32, .width = 8, .width_max = 16};
  m.rdma[0].at.link = slow;
  m.gpus[0].at.link = slow;
  CHECK(found(m, sound()) ==
        Ids{"wrong pcie-width", "wrong pcie-speed", "wrong pcie-width", "note pcie-speed"});
}

TEST_CASE("a port slower than the others of its kind") {
  Machine m = healthy();
  m.rdma[1].ports[0].rate = "100 Gb/sec (4X)";
  CHECK(found(m, sound()) == Ids{"wrong slow-port"});
}

TEST_CASE("NICs on another socket than the GPU, and devices of unknown node") {
  Machine m = healthy();
  for (RdmaDevice& d : m.rdma) d.at.numa = 1;
  CHECK(found(m, sound()) == Ids{"wrong other-socket"});
  m.rdma[0].at.numa = kUnknownNode;
  CHECK(found(m, sound()) == Ids{"wrong no-numa-node", "wrong other-socket"});
  m = healthy();
  m.gpus[0].at.numa = kUnknownNode;
  CHECK(found(m, sound()) == Ids{"wrong no-numa-node"});
}

TEST_CASE("GIDs without RoCE v2, and a small MTU") {
  Machine m = healthy();
  m.rdma[0].ports[0].gids[0].type = "IB/RoCE v1";
  m.nets[1].mtu = 1500;
  CHECK(found(m, sound()) == Ids{"wrong no-roce-v2-gid", "note small-mtu"});
}

TEST_CASE("limits, IOMMU, ACS, huge pages, uverbs") {
  Host h = sound();
  h.memlock_bytes = 8u << 20;
  h.command_line = "quiet";
  h.acs_redirects = {"0000:00:01.0", "0000:77:00.0"};
  h.huge_pages[0].total = 0;
  h.uverbs.erase("mlx5_1");
  CHECK(found(healthy(), h) == Ids{"wrong no-uverbs", "wrong iommu-translates", "wrong acs",
                                   "wrong memlock", "note no-huge-pages"});
}

TEST_CASE("GPUDirect: dma-buf on new kernels, peermem needed on old ones, GPUs without a driver") {
  Host h = sound();
  h.modules->erase("nvidia_peermem");
  CHECK(found(healthy(), h) == Ids{"note dma-buf"});
  for (const char* old : {"5.11.22", "4.18.0-553", "5", ""}) {
    h.kernel = old;
    CHECK(found(healthy(), h) == Ids{"wrong no-gpudirect"});
  }
  Machine m = healthy();
  m.gpus[0].driver.clear();
  CHECK(found(m, sound()) == Ids{"wrong no-gpu-driver"});
}

TEST_CASE("NICs without a driver or without its RDMA half; software RDMA; no RDMA at all") {
  Host h = sound();
  h.unclaimed = {{.pci = "0000:05:00.0", .driver = "", .vendor = 0x15b3, .device = 0x1021},
                 {.pci = "0000:06:00.0", .driver = "mlx5_core", .vendor = 0x15b3}};
  Machine m = healthy();
  RdmaDevice soft = nic("rxe0", "", kUnknownNode);
  m.rdma.push_back(soft);
  h.uverbs.insert("rxe0");
  CHECK(found(m, h) == Ids{"wrong no-driver", "wrong no-rdma-driver", "note software-rdma"});
  m = healthy();
  m.rdma.clear();
  CHECK(found(m, sound()) == Ids{"note no-rdma"});
}

TEST_CASE("a source that knows devices only is not blamed for the rest") {
  CHECK(found(healthy(), Host{}).empty());
}

TEST_CASE("the ends of a rail: link layers, MTUs, types of GID, rates") {
  const Machine a = healthy();
  const auto ids = [&](const Machine& b) {
    Ids out;
    for (const Finding& f : examine_pairs(a, b, {{"mlx5_0", "mlx5_0"}, {"mlx5_1", "absent"}})) {
      CHECK(f.where == "mlx5_0 -> mlx5_0");
      out.push_back(f.id);
    }
    return out;
  };
  CHECK(ids(a).empty());
  Machine b = a;
  b.rdma[0].ports[0].link_layer = "InfiniBand";
  CHECK(ids(b) == Ids{"link-layer-mismatch"});
  b = a;
  b.nets[0].mtu = 1500;
  b.rdma[0].ports[0].gids[0].type = "IB/RoCE v1";
  b.rdma[0].ports[0].rate = "200 Gb/sec (4X)";
  CHECK(ids(b) == Ids{"gid-mismatch", "mtu-mismatch", "rate-mismatch"});
}

TEST_CASE("ACS is read from the extended capabilities, and loops there end") {
  std::string config(4096, '\0');
  CHECK_FALSE(acs_redirects_in(config.substr(0, 64)));
  CHECK_FALSE(acs_redirects_in(config));
  const auto put = [&](size_t at, uint32_t word) {
    for (size_t i = 0; i < 4; ++i) config[at + i] = static_cast<char>(word >> (8 * i));
  };
  put(0x100, 0x0001 | 0x140u << 20);
  put(0x140, 0x000d);
  CHECK_FALSE(acs_redirects_in(config));
  put(0x144, 0x001du << 16);
  CHECK(acs_redirects_in(config));
  put(0x140, 0x0002 | 0x100u << 20);  // a cycle
  CHECK_FALSE(acs_redirects_in(config));
  put(0x100, 0x0001 | 0xffcu << 20);  // the last word of all
  CHECK_FALSE(acs_redirects_in(config));
}

TEST_CASE("the host's facts come from a recording") {
  Recorded recorded("mc-topo-host");
  recorded.function("pci0000:00", "0000:00:02.0", "0", "0x020700");
  recorded.file("module/ib_core/refcnt", "1");
  recorded.file("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16");
  recorded.outside("proc/cmdline", "ro iommu=pt");
  recorded.outside("proc/sys/kernel/osrelease", "6.1.0");
  recorded.outside("proc/self/limits",
                   "Limit    Soft Limit  Hard Limit  Units\n"
                   "Max locked memory         65536                unlimited            bytes");
  const auto host = host_sysfs(recorded.path());
  REQUIRE(host);
  CHECK(host->memlock_bytes == 65536);
  CHECK(host->kernel == "6.1.0");
  CHECK(host->command_line == "ro iommu=pt");
  REQUIRE(host->modules);
  CHECK(host->modules->contains("ib_core"));
  REQUIRE(host->huge_pages.size() == 1);
  CHECK(host->huge_pages[0].total == 16);
  REQUIRE(host->unclaimed.size() == 1);
  CHECK(host->unclaimed[0].pci == "0000:00:02.0");
}

TEST_CASE("a capture holds the same machine and host, and never overwrites") {
  Recorded recorded("mc-topo-from"), copy("mc-topo-to");
  recorded.file("devices/system/node/node0/cpulist", "0-1");
  recorded.file("devices/system/node/node3/cpulist", "2");
  recorded.function("pci0000:00/0000:00:01.0", "0000:01:00.0", "3", "0x020700");
  recorded.function("pci0000:00/0000:00:01.0", "0000:02:00.0", "3", "0x030200", "0x10de");
  const std::string nic_path = "pci0000:00/0000:00:01.0/0000:01:00.0";
  recorded.rdma(nic_path, "roce7", "4: ACTIVE");
  recorded.file("devices/" + nic_path + "/infiniband/roce7/ports/1/gids/0", "fe80::1");
  recorded.file("devices/" + nic_path + "/infiniband/roce7/ports/1/gid_attrs/types/0", "RoCE v2");
  recorded.file("devices/" + nic_path + "/max_link_width", "16");
  recorded.file("devices/" + nic_path + "/current_link_width", "8");
  recorded.file("devices/" + nic_path + "/net/eth7/address", "02:00:00:00:00:01");
  recorded.file("devices/" + nic_path + "/net/eth7/mtu", "9000");
  recorded.link("class/net/eth7", "../../devices/" + nic_path + "/net/eth7");
  recorded.link("devices/" + nic_path + "/driver", "../../../../bus/pci/drivers/mlx5_core");
  recorded.file("module/mlx5_core/refcnt", "1");
  recorded.outside("proc/cmdline", "quiet");
  const std::string folder = copy.path() + "/new";
  const auto done = capture(recorded.path(), folder);
  REQUIRE(done);
  CHECK(done->files > 10);
  const auto before = discover_sysfs(recorded.path()), after = discover_sysfs(folder);
  REQUIRE(before);
  REQUIRE(after);
  CHECK(differences(*before, *after).empty());
  REQUIRE(after->rdma.size() == 1);
  CHECK(after->rdma[0].driver == "mlx5_core");
  CHECK(after->rdma[0].netdev == "eth7");
  CHECK(after->rdma[0].ports[0].gids.size() == 1);
  CHECK(after->rdma[0].at.link.width_max == 16);
  const auto host = host_sysfs(folder);
  REQUIRE(host);
  CHECK(host->command_line == "quiet");
  CHECK(host->modules->contains("mlx5_core"));
  // Nobody's MAC address travels along.
  CHECK_FALSE(std::filesystem::exists(folder + "/sys/devices/" + nic_path + "/net/eth7/address"));
  const auto again = capture(recorded.path(), folder);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == Code::kExists);
}

}  // namespace
}  // namespace mc::topo
