// NVML through the real loading of a library: the stand-in of tests/nvml-stand-in, by its path.
#include "topo/discover/nvml.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "base/json.h"
#include "tests/build_folder.h"
#include "tests/unit/topo/recorded.h"
#include "topo/discover/capture.h"
#include "topo/discover/discover.h"
#include "topo/discover/nvml_record.h"
#include "topo/formats/json.h"
#include "topo/model/gpu_links.h"
#include "topo/report/check.h"
#include "topo/report/picture.h"
#include "topo/report/render.h"

namespace mc::topo::nvml_test {
namespace {

// Each test loads a copy of its own, as a library that is initialised stays so.
class StandIn {
 public:
  StandIn(const char* name, const std::string& text, int lacks = 0) : folder_(name) {
    folder_.outside("gpus", text);
    library_ = folder_.path() + "/libnvidia-ml.so.1";
    std::filesystem::copy_file(build_folder() + strf("/nvml-%d-stand-in/libnvidia-ml.so.1", lacks),
                               library_);
    tell(true);
  }
  ~StandIn() { tell(false); }
  void tell(bool where) const {
    if (where) ::setenv("NVML_STAND_IN", (folder_.path() + "/gpus").c_str(), 1);
    if (!where) ::unsetenv("NVML_STAND_IN");
  }
  void now(const std::string& text) { folder_.outside("gpus", text); }
  NvmlAnswer ask() const { return ask_nvml(library_); }

 private:
  Recorded folder_;
  std::string library_;
};

constexpr const char* kH100 = "NVIDIA H100 80GB HBM3";

// Four GPUs of one switch each behind two sockets, and an NVSwitch that joins them.
Machine four_gpus() {
  Machine m;
  m.source = "test";
  m.nodes = {{.id = 0, .cpus = {0}}, {.id = 1, .cpus = {1}}};
  for (int i = 0; i < 4; ++i) {
    Gpu gpu;
    gpu.name = "NVIDIA 10de:2330";
    gpu.at = {.pci = strf("0000:%d1:00.0", i + 1),
              .numa = i / 2,
              .bridges = {strf("pci0000:%d0", i / 2 + 1), strf("0000:%d0:01.0", i + 1)}};
    m.gpus.push_back(gpu);
  }
  return m;
}

std::string four(const char* links) {
  std::string out = "versions 12.550.54 550.54\n";
  for (int i = 0; i < 4; ++i) {
    out += strf("gpu 00000000:%d1:00.0 %s\n%s", i + 1, kH100, links);
  }
  return out;
}

TEST_CASE("without NVML the machine is as before, and the summary says why") {
  const NvmlAnswer answer = ask_nvml("libnvidia-ml-that-is-not-there.so.1");
  CHECK(answer.why_none.find("cannot open shared object file") != std::string::npos);
  CHECK_FALSE(answer.installed);
  CHECK(nvml_summary(answer).starts_with("no NVML: libnvidia-ml-that-is-not-there.so.1"));
  Machine m = four_gpus();
  add_links(m, answer);
  CHECK(m.gpus[0].name == "NVIDIA 10de:2330");
  CHECK(m.gpus[0].peers.empty());
  CHECK_FALSE(m.nvml_failed);
}

TEST_CASE("GPUs on one switch are peers by all their links, with the generation") {
  const StandIn nvml("nvml-switch", four("links 18 4 switch 00000000:07:00.0\n"));
  Machine m = four_gpus();
  add_links(m, nvml.ask());
  CHECK(m.nvml == "NVML 12.550.54, driver 550.54");
  for (const Gpu& gpu : m.gpus) {
    REQUIRE(gpu.peers.size() == 3);
    CHECK(gpu.name == kH100);
    CHECK(gpu.nvlinks_active == 18);
    for (const GpuPeer& peer : gpu.peers) {
      CHECK(peer.links == 18);
      CHECK(peer.generation == 4);
      CHECK(peer.switched);
    }
  }
  CHECK(gpu_matrix(m)[0] == std::vector<std::string>{"X", "NV18", "NV18", "NV18"});
  const std::string text = machine_text(m);
  CHECK(text.find("NVLink 4 x18 through switches to gpu 1-3") != std::string::npos);
  CHECK(text.find("NVML: NVML 12.550.54, driver 550.54\n") != std::string::npos);
  CHECK(machine_dot(m).find("\"gpu3\" -- \"switches\"") != std::string::npos);
  CHECK(machine_dot(m).find("\"gpu0\" -- \"gpu1\"") == std::string::npos);
  CHECK(machine_svg(m).find(">NV18<") != std::string::npos);
}

TEST_CASE("direct links are counted per peer, and the driver's word on PCIe goes first") {
  const StandIn nvml("nvml-direct",
                     "gpu 00000000:11:00.0 Tesla V100\nlinks 2 2 gpu 00000000:21:00.0\n"
                     "links 1 2 gpu 00000000:31:00.0\ndown 1\n"
                     "gpu 00000000:21:00.0 Tesla V100\nlinks 2 2 gpu 00000000:11:00.0\n"
                     "gpu 00000000:31:00.0 Tesla V100\nlinks 1 2 gpu 00000000:11:00.0\n"
                     "gpu 00000000:41:00.0 Tesla V100\n"
                     "pair 1 2 30 0 5\npair 0 3 50 1 5\n");
  Machine m = four_gpus();
  add_links(m, nvml.ask());
  const auto table = gpu_matrix(m);
  CHECK(table[0] == std::vector<std::string>{"X", "NV2", "NV1", "SYS"});
  CHECK(table[1] == std::vector<std::string>{"NV2", "X", "PHB", "SYS"});  // NVML: not SYS
  CHECK(table[2][3] == "PHB");                                            // by the tree
  CHECK(m.gpus[0].nvlinks == 4);
  CHECK(m.gpus[0].nvlinks_active == 3);
  CHECK(m.gpus[0].name == "NVIDIA Tesla V100");
  CHECK(machine_text(m).find("1 of 4 NVLinks down") != std::string::npos);
  bool peer = false;
  for (const Finding& f : examine(m, Host{})) {
    if (f.id != "no-gpu-peer") continue;
    peer = true;
    CHECK(f.where == "GPU 0 (0000:11:00.0)");
    CHECK(f.what.find("GPU 3: the chipset does not support it") != std::string::npos);
  }
  CHECK(peer);
}

TEST_CASE("switches that the driver does not route over join no GPUs") {
  const StandIn nvml("nvml-idle-switch", four("links 18 4 switch 00000000:07:00.0\n") +
                                             "pair 0 1 40 0 0\npair 0 2 50 0 5\n");
  Machine m = four_gpus();
  add_links(m, nvml.ask());
  CHECK(gpu_matrix(m)[0] == std::vector<std::string>{"X", "NV18", "SYS", "NV18"});
}

TEST_CASE("a library whose driver is not loaded, or of another version, is a finding") {
  StandIn nvml("nvml-mismatch", "fail init 18\n");
  Machine m = four_gpus();
  const NvmlAnswer answer = nvml.ask();
  CHECK(answer.installed);
  CHECK(answer.why_none == "Driver/library version mismatch (nvmlInit: NVML error 18)");
  add_links(m, answer);
  const auto findings = examine(m, Host{});
  REQUIRE(!findings.empty());
  CHECK(findings[0].id == "nvml");
  CHECK(findings[0].what.find("version mismatch") != std::string::npos);

  nvml.now(four("links 2 4 switch 00000000:07:00.0\n"));  // the driver was reloaded
  CHECK(nvml.ask().why_none.empty());
  CHECK(nvml.ask().gpus.size() == 4);
}

TEST_CASE("a library that starts and does not answer is reported") {
  const StandIn broken("nvml-count-fails", "fail count 999\n");
  CHECK(broken.ask().why_none == "Unknown Error (nvmlDeviceGetCount: NVML error 999)");
}

TEST_CASE("a GPU that was lost is named, whatever NVML still reports of it") {
  const std::string others = strf(
      "gpu 00000000:21:00.0 %s\nlinks 4 4 switch 00000000:07:00.0\n"
      "gpu 00000000:31:00.0 %s\nlinks 4 4 switch 00000000:07:00.0\n"
      "gpu 00000000:41:00.0 %s\nlinks 2 4 switch 00000000:07:00.0\n"
      "down 2\n",
      kH100, kH100, kH100);
  for (const char* call : {"handle", "name", "links"}) {
    INFO(call);
    const StandIn nvml((std::string("nvml-lost-") + call).c_str(),
                       strf("gpu 00000000:11:00.0 %s\nfail %s 15\n", kH100, call) + others);
    Machine m = four_gpus();
    add_links(m, nvml.ask());
    CHECK(m.gpus[0].trouble.find("GPU is lost (nvmlDeviceGet") != std::string::npos);
    CHECK(m.gpus[0].peers.empty());
    CHECK(m.gpus[1].trouble.empty());
    CHECK(m.gpus[1].peers.size() == 2);
    CHECK(m.gpus[3].peers[0].links == 2);
    CHECK(machine_text(m).find("in trouble: ") != std::string::npos);
    CHECK(machine_svg(m).find("GPU is lost") != std::string::npos);
    std::string ids;
    for (const Finding& f : examine(m, Host{})) ids += f.id + " " + f.where.substr(0, 5) + ";";
    CHECK(ids.find("gpu-trouble GPU 0;") != std::string::npos);
    CHECK(ids.find("nvlink-down GPU 3;") != std::string::npos);
    CHECK(ids.find("nvlink-down GPU 1;") == std::string::npos);
  }
}

TEST_CASE("an old library reports what it can, or what it lacks") {
  const StandIn old("nvml-old", four("links 6 2 switch 00000000:07:00.0\n"), 1);
  Machine m = four_gpus();
  add_links(m, old.ask());
  CHECK(m.nvml == "NVML 12.550.54, driver 550.54");
  CHECK(m.gpus[0].name == kH100);
  CHECK(m.gpus[0].nvlinks == 0);
  CHECK(gpu_matrix(m)[0] == std::vector<std::string>{"X", "PHB", "SYS", "SYS"});

  const StandIn nvml("nvml-older", four(""), 2);
  const NvmlAnswer answer = nvml.ask();
  CHECK(answer.installed);
  CHECK(answer.why_none.find("has no nvmlDeviceGetCount_v2") != std::string::npos);
}

TEST_CASE("a GPU that only NVML knows is listed without a location") {
  const StandIn nvml("nvml-hidden", strf("gpu 00000000:05:00.0 %s\n", kH100) + four(""));
  Machine m = four_gpus();
  add_links(m, nvml.ask());
  REQUIRE(m.gpus.size() == 5);
  CHECK(m.gpus[0].at.pci == "0000:05:00.0");
  CHECK(m.gpus[0].at.numa == kUnknownNode);
  CHECK(gpu_matrix(m)[0][1] == "?");
}

TEST_CASE("a recording holds NVML's answer, and JSON carries it") {
  const StandIn nvml("nvml-record", four("links 18 4 switch 00000000:07:00.0\n") +
                                        "pair 0 1 40 0 0\npair 0 2 50 3 5\n");
  const NvmlAnswer answer = nvml.ask();
  const auto read = nvml_from_text(nvml_to_text(answer), "here");
  REQUIRE(read);
  Machine live = four_gpus(), replayed = four_gpus();
  add_links(live, answer);
  add_links(replayed, *read);
  CHECK(dump_json(machine_json(live)) == dump_json(machine_json(replayed)));
  const auto again = machine_from_json(machine_json(live), "test");
  REQUIRE(again);
  CHECK(dump_json(machine_json(*again)) == dump_json(machine_json(live)));

  Recorded machine("nvml-recorded");
  machine.file("devices/system/node/node0/cpulist", "0");
  machine.function("pci0000:10", "0000:11:00.0", "0", "0x030200", "0x10de");
  machine.outside("nvml.json", nvml_to_text(answer));
  const auto found = discover_sysfs(machine.path());
  REQUIRE(found);
  REQUIRE(found->gpus.size() == 4);
  CHECK(found->gpus[0].peers.size() == 2);  // not to the third
  CHECK(found->gpus[3].at.numa == 0);       // the only node

  const std::string copy = machine.path() + "/copy";
  REQUIRE(capture(machine.path(), copy));
  const auto copied = discover_sysfs(copy);
  REQUIRE(copied);
  CHECK(machine_text(*copied).substr(copy.size()) ==
        machine_text(*found).substr(machine.path().size()));

  for (const char* text :
       {"", "[]", "{\"gpus\": 3}", "{\"gpus\": [3]}", "{\"pairs\": [{\"a\": 1}]}",
        "{\"gpus\": [{\"links\": [{\"generation\": 4000000000}]}]}"}) {
    INFO(text);
    machine.outside("nvml.json", text);
    const auto bad = discover_sysfs(machine.path());
    REQUIRE_FALSE(bad);
    CHECK(bad.error().what.find("nvml.json: ") != std::string::npos);
  }
}

TEST_CASE("PCIe paths follow from the tree without a driver") {
  Machine m = four_gpus();
  const auto put = [&](size_t gpu, int numa, std::vector<std::string> bridges) {
    m.gpus[gpu].at.numa = numa;
    m.gpus[gpu].at.bridges = std::move(bridges);
  };
  put(0, 0, {"pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0"});
  put(1, 0, {"pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0"});
  put(2, 0, {"pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:02.0", "0000:13:00.0"});
  put(3, 0, {"pci0000:20"});
  CHECK(gpu_matrix(m)[0] == std::vector<std::string>{"X", "PIX", "PXB", "NODE"});
  put(3, 0, {"pci0000:10", "0000:10:02.0"});
  CHECK(gpu_matrix(m)[0][3] == "PHB");
  put(3, 1, {"pci0000:20"});
  CHECK(gpu_matrix(m)[0][3] == "SYS");
  put(3, kUnknownNode, {});
  CHECK(gpu_matrix(m)[0][3] == "?");
}

}  // namespace
}  // namespace mc::topo::nvml_test
