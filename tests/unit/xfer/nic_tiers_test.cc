#include "xfer/rails/nic_tiers.h"

#include <doctest/doctest.h>

#include "xfer/core/transport.h"

namespace mc::xfer {
namespace {

topo::RdmaDevice nic(const char* name, const char* pci, int node,
                     std::vector<std::string> bridges) {
  topo::RdmaDevice out;
  out.name = name;
  out.at = {pci, node, std::move(bridges), {}};
  out.ports = {{1, "ACTIVE", {}, {}, {}}};
  return out;
}

topo::Machine machine() {
  topo::Machine m;
  m.nodes = {{0, {0}, 0}, {1, {1}, 0}};
  topo::Gpu gpu;
  gpu.at = {"0000:02:00.0", 0, {"pci0000:00", "0000:00:01.0"}, {}};
  m.gpus.push_back(gpu);
  gpu.at = {"0000:82:00.0", 1, {"pci0000:80"}, {}};
  m.gpus.push_back(gpu);
  m.rdma = {nic("a", "0000:03:00.0", 0, {"pci0000:00", "0000:00:01.0"}),
            nic("b", "0000:04:00.0", 0, {"pci0000:00", "0000:00:03.0"}),
            nic("c", "0000:83:00.0", 1, {"pci0000:80"}), nic("rxe0", "", -1, {})};
  m.rdma.push_back(nic("dark", "0000:05:00.0", 0, {"pci0000:00"}));
  m.rdma.back().ports[0].state = "DOWN";
  return m;
}

}  // namespace

TEST_SUITE("nic tiers") {
  TEST_CASE("a device has a tier for each GPU, by the rule of the topology") {
    const NicTiers tiers(machine());
    using Row = std::vector<uint8_t>;
    CHECK(tiers.of("a") == Row{1, 3});
    CHECK(tiers.of("b") == Row{2, 3});
    CHECK(tiers.of("c") == Row{3, 1});
    for (const char* left_out : {"rxe0", "dark", "nobody"}) CHECK(tiers.of(left_out).empty());
    CHECK(NicTiers().of("a").empty());
    CHECK(tiers.gpu_beside("a") == "gpu 0");
    CHECK(tiers.gpu_beside("c") == "gpu 1");
    for (const char* elsewhere : {"b", "rxe0", "dark", "nobody"})
      CHECK(tiers.gpu_beside(elsewhere).empty());
  }

  TEST_CASE("where a peer's memory lies is not known if no machine has such a node or GPU") {
    const auto at = [](uint32_t node, uint32_t gpu) {
      Peer peer;
      BufferInfo all;
      all.bytes = 4096;
      all.node = node;
      all.gpu = gpu;
      peer.descriptor.buffers.push_back(all);
      return peer.memory_at(64);
    };
    CHECK(at(0, 0) == MemoryLocation{});
    CHECK(at(1, 3) == MemoryLocation{0, 2});
    CHECK(at(65'535, 65'536) == MemoryLocation{65'534, -1});
    CHECK(at(0x8000'0000, 0x7fff'ffff) == MemoryLocation{});
    CHECK(at(0xffff'ffff, 1) == MemoryLocation{-1, 0});
  }

  TEST_CASE("a GPU is found by its address in any spelling") {
    const NicTiers tiers(machine());
    CHECK(tiers.gpu("0000:82:00.0") == MemoryLocation{1, 1});
    CHECK(tiers.gpu("00000000:02:00.0") == MemoryLocation{0, 0});  // as NVML writes it
    CHECK(tiers.gpu("02:00.0") == MemoryLocation{0, 0});
    CHECK(tiers.gpu("0000:03:00.0") == MemoryLocation{});
    CHECK(tiers.gpu("") == MemoryLocation{});
  }
}

}  // namespace mc::xfer
