// Each fault that `check` knows, made in a recorded sysfs of a healthy machine, is found there.
#include <doctest/doctest.h>

#include <functional>

#include "tests/unit/topo/recorded.h"
#include "topo/discover/discover.h"
#include "topo/model/tiers.h"
#include "topo/report/check.h"

namespace mc::topo::doctored_test {
namespace {

const std::string kBridge = "pci0000:00/0000:00:01.0/";
const std::string kGpu = kBridge + "0000:02:00.0", kNic = kBridge + "0000:03:00.0";
constexpr const char* kLimits =
    "Limit    Soft Limit  Hard Limit  Units\nMax locked memory         ";

void card(Recorded& r, const std::string& address, const char* kind, const char* vendor,
          const char* driver) {
  r.function("pci0000:00/0000:00:01.0", address, "0", kind, vendor);
  const std::string at = "devices/" + kBridge + address;
  for (const char* which : {"/current_link_", "/max_link_"}) {
    r.file(at + which + "speed", "32.0 GT/s PCIe");
    r.file(at + which + "width", "16");
  }
  r.link(at + "/driver", std::string("../../../../bus/pci/drivers/") + driver);
}

void nic(Recorded& r, const std::string& number, const std::string& address) {
  const std::string name = "mlx5_" + number, at = kBridge + address;
  card(r, address, "0x020700", "0x15b3", "mlx5_core");
  r.rdma(at, name, "4: ACTIVE");
  const std::string port = "devices/" + at + "/infiniband/" + name + "/ports/1/";
  r.file(port + "link_layer", "Ethernet");
  r.file(port + "rate", "400 Gb/sec (4X NDR)");
  r.file(port + "gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001");
  r.file(port + "gid_attrs/types/0", "RoCE v2");
  r.file("devices/" + at + "/net/eth" + number + "/mtu", "9000");
  r.link("class/net/eth" + number, "../../devices/" + at + "/net/eth" + number);
  r.file("class/infiniband_verbs/uverbs" + number + "/ibdev", name);
}

void healthy(Recorded& r) {
  r.file("devices/system/node/node0/cpulist", "0-1");
  r.file("devices/system/node/node1/cpulist", "2-3");
  r.function("pci0000:00", "0000:00:01.0", "0", "0x060400");
  card(r, "0000:02:00.0", "0x030200", "0x10de", "nvidia");
  nic(r, "0", "0000:03:00.0");
  nic(r, "1", "0000:04:00.0");
  for (const char* module : {"nvidia_peermem", "mlx5_ib", "ib_uverbs"})
    r.file(std::string("module/") + module + "/refcnt", "1");
  r.file("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16");
  r.file("kernel/iommu_groups/0/type", "DMA");
  r.outside("proc/cmdline", "quiet iommu=pt");
  r.outside("proc/sys/kernel/osrelease", "6.1.0");
  r.outside("proc/self/limits", std::string(kLimits) + "unlimited  unlimited  bytes");
}

void remove(const Recorded& r, const std::string& path) {
  std::filesystem::remove_all(r.path() + "/sys/" + path);
}

std::string found(const std::function<void(Recorded&)>& doctor) {
  Recorded recorded("mc-doctored");
  healthy(recorded);
  doctor(recorded);
  const auto machine = discover_sysfs(recorded.path());
  const auto host = host_sysfs(recorded.path());
  REQUIRE_MESSAGE(machine.has_value(), (machine ? "" : machine.error().what));
  REQUIRE(host.has_value());
  std::string ids;
  for (const Finding& f : examine(*machine, *host)) ids += (ids.empty() ? "" : " ") + f.id;
  return ids;
}

std::string acs_config() {  // one extended capability: access control, with redirection on
  std::string config(4096, '\0');
  config[0x100] = 0x0d;
  config[0x102] = 0x01;
  config[0x106] = 0x1d;
  return config;
}

}  // namespace

TEST_CASE("a healthy recorded machine has no findings") {
  CHECK(found([](Recorded&) {}).empty());
}

TEST_CASE("each fault in a recorded machine is found, and nothing else is") {
  const std::string port = "devices/" + kNic + "/infiniband/mlx5_0/ports/1/";
  const std::string nic = "devices/" + kNic, gpu = "devices/" + kGpu;
  struct Case {
    const char* id;
    std::function<void(Recorded&)> doctor;
  };
  const std::vector<Case> cases{
      {"port-down", [&](Recorded& r) { r.file(port + "state", "1: DOWN"); }},
      {"port-not-active", [&](Recorded& r) { r.file(port + "state", "2: INIT"); }},
      {"no-port", [&](Recorded& r) { remove(r, port); }},
      {"slow-port", [&](Recorded& r) { r.file(port + "rate", "100 Gb/sec (4X EDR)"); }},
      {"pcie-width", [&](Recorded& r) { r.file(nic + "/current_link_width", "8"); }},
      {"pcie-speed", [&](Recorded& r) { r.file(nic + "/current_link_speed", "8.0 GT/s PCIe"); }},
      {"pcie-speed", [&](Recorded& r) { r.file(gpu + "/current_link_speed", "2.5 GT/s PCIe"); }},
      {"other-socket", [&](Recorded& r) { r.file(gpu + "/numa_node", "1"); }},
      {"no-numa-node", [&](Recorded& r) { r.file(nic + "/numa_node", "-1"); }},
      {"no-roce-v2-gid", [&](Recorded& r) { r.file(port + "gid_attrs/types/0", "IB/RoCE v1"); }},
      {"small-mtu", [&](Recorded& r) { r.file(nic + "/net/eth0/mtu", "1500"); }},
      {"no-uverbs", [](Recorded& r) { remove(r, "class/infiniband_verbs/uverbs0"); }},
      {"no-driver", [](Recorded& r) { r.function("pci0000:00", "0000:00:09.0", "0", "0x020700"); }},
      {"no-rdma-driver",
       [](Recorded& r) { card(r, "0000:09:00.0", "0x020700", "0x15b3", "mlx5_core"); }},
      {"no-gpu-driver", [&](Recorded& r) { remove(r, gpu + "/driver"); }},
      {"dma-buf", [](Recorded& r) { remove(r, "module/nvidia_peermem"); }},
      {"no-gpudirect",
       [](Recorded& r) {
         remove(r, "module/nvidia_peermem");
         r.outside("proc/sys/kernel/osrelease", "5.4.0-150-generic");
       }},
      {"iommu-translates", [](Recorded& r) { r.outside("proc/cmdline", "quiet"); }},
      {"acs", [](Recorded& r) { r.file("devices/" + kBridge + "config", acs_config()); }},
      {"memlock",
       [](Recorded& r) {
         r.outside("proc/self/limits", std::string(kLimits) + "8388608  8388608  bytes");
       }},
      {"no-huge-pages",
       [](Recorded& r) { r.file("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"); }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.id);
    CHECK(found(c.doctor) == c.id);
  }
}

TEST_CASE("a virtual function is a NIC like its physical one") {
  Recorded recorded("mc-vf");
  healthy(recorded);
  nic(recorded, "2", "0000:03:00.2");
  recorded.link("devices/" + kBridge + "0000:03:00.2/physfn", "../0000:03:00.0");
  recorded.link("devices/" + kNic + "/virtfn0", "../0000:03:00.2");
  const auto machine = discover_sysfs(recorded.path());
  REQUIRE(machine.has_value());
  CHECK(machine->rdma.size() == 3);
  const auto table = tier_table(*machine);
  REQUIRE(table.gpus.size() == 1);
  CHECK(table.gpus[0].tiers[0].size() == 3);
}

TEST_CASE("links that form a cycle terminate") {
  Recorded recorded("mc-circles");
  healthy(recorded);
  recorded.link("devices/" + kNic + "/upper", "..");
  recorded.link("class/infiniband/mlx5_9", "mlx5_9");
  recorded.link("class/infiniband/mlx5_8", "../../devices/pci0000:00");
  recorded.link("bus/pci/devices/0000:0a:00.0", "..");
  recorded.link("bus/pci/devices/0000:0b:00.0", "0000:0b:00.0");
  const auto machine = discover_sysfs(recorded.path());
  if (!machine) CHECK_FALSE(machine.error().what.empty());
  if (machine) CHECK(machine->gpus.size() == 1);
}

}  // namespace mc::topo::doctored_test
