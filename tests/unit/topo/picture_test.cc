#include "topo/report/picture.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "topo/formats/xml.h"

namespace mc::topo {
namespace {

Machine machine(const std::string& nic_name) {
  Machine m;
  m.source = "test";
  m.nodes = {{.id = 0, .cpus = {0, 1}}, {.id = 1, .cpus = {}}};
  for (int i = 0; i < 2; ++i) {
    const std::vector<std::string> bridges{"pci0000:00", strf("0000:0%d:00.0", i + 1)};
    m.gpus.push_back({.name = "NVIDIA 10de:2330",
                      .at = {.pci = strf("0000:1%d:00.0", i), .numa = 0, .bridges = bridges}});
    m.rdma.push_back({.name = nic_name + std::to_string(i),
                      .at = {.pci = strf("0000:2%d:00.0", i), .numa = 0, .bridges = bridges},
                      .ports = {{.number = 1, .state = i == 0 ? "ACTIVE" : "DOWN"}}});
  }
  m.gpus[0].peers = {{.pci = m.gpus[1].at.pci, .type = "NVLink", .links = 18}};
  m.nets = {{.name = "lo", .at = {}, .up = true}};
  m.disks = {{.name = "nvme0", .at = {.pci = "0000:30:00.0", .numa = 5}, .bytes = 1u << 30}};
  return m;
}

std::vector<std::string> attributes(const XmlElement& e, const char* element, const char* name) {
  std::vector<std::string> out;
  if (e.name == element) out.push_back(e.get(name));
  for (const XmlElement& child : e.children) {
    for (auto& s : attributes(child, element, name)) out.push_back(std::move(s));
  }
  return out;
}

TEST_CASE("the SVG is well-formed, names every device, and stays inside its frame") {
  const std::string svg = machine_svg(machine("mlx5_"));
  const auto root = parse_xml(svg, "svg");
  REQUIRE(root);
  CHECK(root->name == "svg");
  for (const char* word : {">GPU 0<", ">GPU 1<", ">mlx5_0<", ">mlx5_1<", ">lo<", ">nvme0<",
                           "tier 1: mlx5_0", "NUMA node 1: memory only", "no NUMA node known",
                           "NUMA node 5, not listed", "0000:01:00.0", "NVLink to 1"}) {
    INFO(word);
    CHECK(svg.find(word) != std::string::npos);
  }
  const double width = std::stod(root->get("width")), height = std::stod(root->get("height"));
  const auto xs = attributes(*root, "rect", "x"), ys = attributes(*root, "rect", "y");
  const auto ws = attributes(*root, "rect", "width"), hs = attributes(*root, "rect", "height");
  for (size_t i = 0; i < xs.size(); ++i) {
    if (xs[i].empty()) continue;  // the background
    CHECK(std::stod(xs[i]) + std::stod(ws[i]) <= width);
    CHECK(std::stod(ys[i]) + std::stod(hs[i]) <= height);
  }
  const auto fills = attributes(*root, "rect", "fill");
  CHECK(std::count(fills.begin(), fills.end(), "#f9d9d6") == 2);  // the port down, the legend
}

TEST_CASE("names that would be markup or code stay names") {
  const std::string evil = "\"/><script>&\\\n\x1b[2J\xff";
  const std::string svg = machine_svg(machine(evil));
  REQUIRE(parse_xml(svg, "svg"));
  CHECK(svg.find("<script") == std::string::npos);
  CHECK(svg.find('\x1b') == std::string::npos);
  const std::string dot = machine_dot(machine(evil));
  CHECK(dot.find("\\\"/><script>") != std::string::npos);
  CHECK(dot.find('\x1b') == std::string::npos);
}

TEST_CASE("DOT has every device once and links between GPUs once") {
  const std::string dot = machine_dot(machine("mlx5_"));
  CHECK(dot.starts_with("graph topology {"));
  CHECK(dot.ends_with("}\n"));
  CHECK(std::count(dot.begin(), dot.end(), '{') == std::count(dot.begin(), dot.end(), '}'));
  CHECK(dot.find("\"gpu0\" -- \"gpu1\" [style=dashed") != std::string::npos);
  CHECK(dot.find("\"gpu1\" -- \"gpu0\"") == std::string::npos);
  CHECK(dot.find("mlx5_1\\n0000:21:00.0") != std::string::npos);
}

TEST_CASE("a machine without devices is a picture too") {
  Machine empty;
  empty.nodes = {{.id = 0, .cpus = {0}}};
  CHECK(parse_xml(machine_svg(empty), "svg"));
  CHECK(parse_xml(machine_svg(Machine{}), "svg"));
  CHECK(machine_dot(Machine{}).ends_with("}\n"));
}

}  // namespace
}  // namespace mc::topo
