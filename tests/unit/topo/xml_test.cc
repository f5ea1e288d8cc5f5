#include "topo/formats/xml.h"

#include <doctest/doctest.h>

#include "base/random.h"
#include "topo/discover/discover.h"
#include "topo/formats/hwloc_xml.h"
#include "topo/formats/nccl_xml.h"
#include "topo/model/limits.h"
#include "topo/model/numbers.h"

namespace mc::topo {
namespace {

constexpr const char* kNccl = R"(<?xml version="1.0"?>
<!-- two sockets -->
<system version="2">
  <cpu numaid="1" affinity="0000000c" arch="x86_64">
    <pci busid="0000:05:00.0" class="0x060400" vendor="0x15b3" device="0x1979">
      <pci busid="0000:0C:00.0" class="0x120000" vendor="0x1002" device="0x74a1"
           link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" rank="0"><xgmi target="0000:15:00.0" count="2"/></gpu>
      </pci>
      <pci busid="0000:07:00.0" class="0x020700" vendor="0x15b3" device="0x1021">
        <nic>
          <net name="mlx5_0" speed="400000" port="1" gdr="1"/>
          <net name="mlx5_1" speed="400000" port="1" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <nic><net name="nowhere_0" speed="1000" port="1" gdr="0"/></nic>
  </cpu>
  <cpu numaid="3" affinity="00000001,00000003">
    <pci busid="0000:81:00.0" class="0x020000" vendor="0x8086" device="0x1521">
      <nic><net name="eth0" speed="10000" port="0" gdr="0"/></nic>
    </pci>
  </cpu>
</system>)";

// One package with DRAM and HBM, a GPU and a NIC below one switch, as lstopo writes it but with
// comments and line breaks that hwloc's own small reader does not take.
constexpr const char* kHwloc = R"(<?xml version="1.0"?>
<!-- a comment --> <!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003"
   allowed_cpuset="0x00000003" nodeset="0x00000011" complete_nodeset="0x00000011"
   allowed_nodeset="0x00000011" gp_index="1">
  <info name="Quoted" value="a &quot;b&quot; &lt; &#99;"/>
  <object type="NUMANode" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003"
    nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="2" local_memory="1024"/>
  <object type="NUMANode" os_index="4" cpuset="0x00000003" complete_cpuset="0x00000003"
    nodeset="0x00000010" complete_nodeset="0x00000010" gp_index="3" local_memory="512"/>
  <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001"
    nodeset="0x00000011" complete_nodeset="0x00000011" gp_index="4"/>
  <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002"
    nodeset="0x00000011" complete_nodeset="0x00000011" gp_index="5"/>
  <object type="Bridge" gp_index="6" bridge_type="0-1" depth="0" bridge_pci="0003:[00-02]">
   <object type="Bridge" gp_index="7" bridge_type="1-1" depth="1" bridge_pci="0003:[01-02]"
     pci_busid="0003:00:00.0" pci_type="0604 [1014:04c1] [0000:0000] 00" pci_link_speed="15.7">
    <object type="PCIDev" gp_index="8" pci_busid="0003:01:00.0"
      pci_type="0302 [10de:2330] [10de:1212] a1" pci_link_speed="15.7"/>
    <object type="PCIDev" gp_index="9" pci_busid="0003:02:00.0"
      pci_type="0207 [15b3:1019] [1014:0617] 00" pci_link_speed="15.7">
     <object type="OSDev" gp_index="10" name="mlx5_0" osdev_type="3">
      <info name="Port1State" value="1"/><info name="Port2State" value="4"/>
     </object>
    </object>
   </object>
  </object>
 </object>
</topology>)";

Result<XmlElement> parse(std::string_view text) { return parse_xml(text, "f.xml"); }

std::string error_of(std::string_view text) {
  const auto parsed = parse(text);
  return parsed ? "" : parsed.error().what;
}

TEST_CASE("elements, attributes and references are read; all else is skipped") {
  const auto root = parse(
      "\xef\xbb\xbf<?xml version='1.0'?><!DOCTYPE a SYSTEM \"x.dtd\"><a x='1' y=\"&lt;&#65;&#x42;"
      "&amp;\">text<!-- <b> --><b/><![CDATA[<c>]]><d >more</d ></a>\n");
  REQUIRE(root);
  CHECK(root->name == "a");
  CHECK(root->get("x") == "1");
  CHECK(root->get("y") == "<AB&");
  CHECK(root->find("z") == nullptr);
  REQUIRE(root->children.size() == 2);
  CHECK(root->children[1].name == "d");
}

TEST_CASE("malformed XML is refused with the line") {
  for (const char* bad : {"",
                          "  ",
                          "text",
                          "<",
                          "<a",
                          "<a>",
                          "<a/><b/>",
                          "<a></b>",
                          "<a x></a>",
                          "<a x=1/>",
                          "<a x='1' x='2'/>",
                          "<a x='&zebra;'/>",
                          "<a x='&#0;'/>",
                          "<a x='&#x110000;'/>",
                          "<a x='<'/>",
                          "<a x='1/>",
                          "<!-- <a/>",
                          "<?a",
                          "<!DOCTYPE a",
                          "<a><![CDATA[</a>",
                          "</a>",
                          "<a/",
                          "<a x='1'y"}) {
    INFO(bad);
    const auto parsed = parse(bad);
    REQUIRE_FALSE(parsed);
    CHECK(parsed.error().code == Code::kInvalid);
    CHECK(parsed.error().what.find("f.xml:1: malformed XML") == 0);
  }
  CHECK(error_of("<a>\n\n<b x=1/></a>").find("f.xml:3:") == 0);
  CHECK(error_of(std::string_view("<a>\0</a>", 8)).find("NUL bytes") != std::string::npos);
}

TEST_CASE("small files that would grow are refused: entities, depth, elements, values") {
  CHECK(error_of("<!DOCTYPE l [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><l>&b;</l>")
            .find("definitions in the document type") != std::string::npos);
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i) deep += "<a>";
  CHECK(error_of(deep).find("nest deeper than") != std::string::npos);
  std::string wide = "<a>";
  for (size_t i = 0; i <= kXmlElementsMax; ++i) wide += "<b/>";
  CHECK(error_of(wide + "</a>").find("more than") != std::string::npos);
  CHECK(error_of("<a x='" + std::string(kXmlValueMax + 100, 'x') + "'/>").find("longer than") !=
        std::string::npos);
}

TEST_CASE("masks have groups of 32 bits, empty groups are zero, nonsense is refused") {
  CHECK(parse_mask("0x00000001,,0x80000003", "f").value() == std::vector<int>{0, 1, 31, 64});
  CHECK(parse_mask("", "f").value().empty());
  CHECK(parse_mask(",1", "f").value() == std::vector<int>{0});
  CHECK(parse_mask(std::string(100'000, ','), "f").value().empty());
  for (const char* bad : {"x", "0x1ffffffff", "1 ", "0xf...f", "-1"}) {
    INFO(bad);
    CHECK_FALSE(parse_mask(bad, "f"));
  }
}

TEST_CASE(
    "an NCCL topology: gaps in NUMA ids, two devices on one function, devices without a location") {
  const auto machine = machine_from_nccl(parse(kNccl).value(), "f.xml");
  REQUIRE(machine);
  REQUIRE(machine->nodes.size() == 2);
  CHECK(machine->nodes[0].id == 1);
  CHECK(machine->nodes[0].cpus == std::vector<int>{2, 3});
  CHECK(machine->nodes[1].cpus == std::vector<int>{0, 1, 32});
  REQUIRE(machine->gpus.size() == 1);
  CHECK(machine->gpus[0].at.pci == "0000:0c:00.0");
  CHECK(machine->gpus[0].at.link.gt_per_s == 32);
  CHECK(machine->gpus[0].at.link.width == 16);
  REQUIRE(machine->gpus[0].peers.size() == 1);
  CHECK(machine->gpus[0].peers[0].links == 2);
  REQUIRE(machine->rdma.size() == 3);
  CHECK(machine->rdma[0].at.bridges == std::vector<std::string>{"0000:05:00.0"});
  CHECK(machine->rdma[1].at.pci == machine->rdma[0].at.pci);
  CHECK(machine->rdma[2].at.pci.empty());
  CHECK(machine->rdma[2].at.numa == kUnknownNode);
  REQUIRE(machine->nets.size() == 1);  // a socket interface is no RDMA device
  CHECK(machine->nets[0].name == "eth0");
}

TEST_CASE("NVLinks of an NCCL file that end at switches join the GPUs that have them") {
  std::string text = "<system><cpu numaid=\"0\" affinity=\"1\">";
  for (const char* gpu : {"0", "1", "2"}) {
    text += std::string("<pci busid=\"0000:0") + gpu + ":00.0\" class=\"0x030200\"><gpu dev=\"" +
            gpu + "\">";
    // NCCL writes no address for a switch.
    if (gpu[0] != '1') {
      text += "<nvlink target=\"fffffff:ffff:ff\" count=\"18\" tclass=\"0x068000\"/>";
    }
    text += "</gpu></pci>";
  }
  const auto machine = machine_from_nccl(parse(text + "</cpu></system>").value(), "f.xml");
  REQUIRE(machine);
  REQUIRE(machine->gpus.size() == 3);
  REQUIRE(machine->gpus[0].peers.size() == 1);
  CHECK(machine->gpus[0].peers[0].pci == "0000:02:00.0");
  CHECK(machine->gpus[0].peers[0].links == 18);
  CHECK(machine->gpus[0].peers[0].switched);
  CHECK(machine->gpus[1].peers.empty());
}

TEST_CASE("a file with more devices than a machine has is refused with their number") {
  const auto error = [](size_t nodes, size_t gpus, size_t nics) {
    std::string text = "<system>";
    for (size_t i = 0; i < std::max<size_t>(nodes, 1); ++i) {
      text += strf("<cpu numaid=\"%zu\" affinity=\"1\">", i);
      const auto pci = [&](size_t at, const char* inner) {
        text += strf("<pci busid=\"%04zx:%02zx:%02zx.0\" class=\"0x0302%s</pci>", at >> 13,
                     at >> 5 & 255, at & 31, inner);
      };
      for (size_t k = 0; i == 0 && k < gpus; ++k) pci(k, "00\" vendor=\"0x10de\"><gpu dev=\"0\"/>");
      for (size_t k = 0; i == 0 && k < nics; ++k) {
        pci(100'000 + k, "ff\" vendor=\"0x0\"><nic><net name=\"m\" port=\"1\"/></nic>");
      }
      text += "</cpu>";
    }
    const auto machine = machine_from_xml(text + "</system>", "f.xml");
    return machine ? "" : machine.error().what;
  };
  CHECK(error(kMachineNodesMax, 100, 100).empty());
  CHECK(error(kMachineNodesMax + 1, 0, 0) == "f.xml: 1025 NUMA nodes: a machine has at most 1024");
  CHECK(error(kMachineNodesMax + 500, 0, 0).find("NUMA nodes") != std::string::npos);
  CHECK(error(1, kMachineGpusMax + 1, 0) == "f.xml: 1025 GPUs: a machine has at most 1024");
  CHECK(error(1, 0, kMachineRdmaMax + 1).find("4097") != std::string::npos);
}

TEST_CASE("NCCL files that contradict themselves are refused with the element") {
  const auto error = [](const std::string& body) {
    const auto machine = machine_from_nccl(parse("<system>" + body + "</system>").value(), "f.xml");
    return machine ? "" : machine.error().what;
  };
  CHECK(error("").find("holds no <cpu>") != std::string::npos);
  CHECK(error("<cpu numaid='9999999'/>").find("is no NUMA node") != std::string::npos);
  CHECK(error("<cpu numaid='0' affinity='zebra'/>").find("is not a mask") != std::string::npos);
  CHECK(error("<cpu numaid='0'><pci busid='a'/></cpu>").find("is no PCI") != std::string::npos);
  // A cycle would have to name a function twice.
  CHECK(error("<cpu numaid='0'><pci busid='0:0:0.0'/></cpu>").find("is no") != std::string::npos);
  CHECK(error("<cpu numaid='0'><pci busid='0000:01:00.0'><pci busid='0000:02:00.0'>"
              "<pci busid='0000:01:00.0'/></pci></pci></cpu>")
            .find("is there twice") != std::string::npos);
  CHECK(error("<cpu numaid='0' host_hash='0x1'/><cpu numaid='0' host_hash='0x2'/>")
            .find("several hosts") != std::string::npos);
}

TEST_CASE("an hwloc topology with comments is read, and HBM beside DRAM has no CPUs of its own") {
  const auto machine = machine_from_hwloc(parse(kHwloc).value(), "f.xml");
  REQUIRE(machine);
  REQUIRE(machine->nodes.size() == 2);
  CHECK(machine->nodes[0].cpus == std::vector<int>{0, 1});
  CHECK(machine->nodes[1].id == 4);
  CHECK(machine->nodes[1].cpus.empty());
  REQUIRE(machine->gpus.size() == 1);
  CHECK(machine->gpus[0].at.pci == "0003:01:00.0");
  CHECK(machine->gpus[0].at.numa == 0);
  CHECK(machine->gpus[0].at.bridges == std::vector<std::string>{"pci0003:00", "0003:00:00.0"});
  REQUIRE(machine->rdma.size() == 1);
  CHECK(machine->rdma[0].at.pci == "0003:02:00.0");
  REQUIRE(machine->rdma[0].ports.size() == 2);
  CHECK_FALSE(machine->rdma[0].ports[0].active());
  CHECK(machine->rdma[0].ports[1].active());
}

TEST_CASE("an hwloc file of a later format is refused as such") {
  for (const char* version : {"3.0", "4", "17.2"}) {
    const auto machine =
        machine_from_hwloc(parse(strf("<topology version='%s'/>", version)).value(), "f.xml");
    REQUIRE_FALSE(machine);
    CHECK(machine.error().code == Code::kUnsupported);
    CHECK(machine.error().what.find(strf("format %s", version)) != std::string::npos);
  }
  const auto nonsense = machine_from_hwloc(parse("<topology version='x'/>").value(), "f.xml");
  REQUIRE_FALSE(nonsense);
  CHECK(nonsense.error().code == Code::kInvalid);
}

// Random damage: bytes, cuts, doubled stretches and swapped values.
std::string damaged(std::string text, Random& random) {
  static constexpr const char* kValues[] = {
      "",   "-1",       "0",      "99999999999999999999", "0xffffffff,,,",
      "PU", "NUMANode", "Bridge", "0000:00:00.0",         "4294967295"};
  for (uint64_t n = 1 + random.below(3); n > 0; --n) {
    const size_t at = random.below(text.size());
    switch (random.below(4)) {
      case 0: text[at] = static_cast<char>(random.below(256)); break;
      case 1: text.resize(at + 1); break;
      case 2: text.insert(random.below(text.size()), text.substr(at, random.below(400))); break;
      default: {
        const size_t open = text.find("=\"", at);
        const size_t close = open == std::string::npos ? open : text.find('"', open + 2);
        if (close == std::string::npos) break;
        text.replace(open + 2, close - open - 2, kValues[random.below(std::size(kValues))]);
      }
    }
  }
  return text;
}

TEST_CASE("damaged files give an error or a machine, never a crash") {
  Random random(20261121);
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto root = parse(damaged(i % 2 == 0 ? kNccl : kHwloc, random));
    if (!root) continue;
    if (root->name == "system") accepted += machine_from_nccl(*root, "f.xml").has_value();
    if (root->name == "topology") accepted += machine_from_hwloc(*root, "f.xml").has_value();
  }
  CHECK(accepted > 0);
}

}  // namespace
}  // namespace mc::topo
