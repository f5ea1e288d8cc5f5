// Untrusted descriptions of machines, fuzzed: hwloc XML, NCCL XML, our JSON, and recorded
// sysfs trees. An input is read, or refused with an error that names it; whatever is read can be
// ranked, shown in every form, compared with itself, and written and read again as the same
// machine.
//
// What an input is, its first byte says: '<' XML, '{' JSON, else the tree of a recording, a line an
// entry: "F path text" (text with \n for a new line) or "L path target".
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/fuzz/target.h"
#include "topo/discover/discover.h"
#include "topo/discover/host.h"
#include "topo/formats/json.h"
#include "topo/formats/xml.h"
#include "topo/model/tiers.h"
#include "topo/report/check.h"
#include "topo/report/diff.h"
#include "topo/report/picture.h"
#include "topo/report/render.h"
#include "xfer/rails/nic_tiers.h"

using namespace mc;
using namespace mc::topo;
namespace fs = std::filesystem;

namespace {

constexpr size_t kEntriesMax = 400;

// The tree of a recording in a folder of its own, gone at the end.
class Tree {
 public:
  explicit Tree(std::string_view manifest)
      : root_("/dev/shm/mc-fuzz." + std::to_string(::getpid())) {
    fs::create_directories(root_ / "sys/devices");
    size_t entries = 0;
    while (!manifest.empty() && ++entries < kEntriesMax) {
      const size_t end = std::min(manifest.find('\n'), manifest.size());
      enter(manifest.substr(0, end));
      manifest.remove_prefix(std::min(end + 1, manifest.size()));
    }
  }
  ~Tree() {
    std::error_code error;
    fs::remove_all(root_, error);
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  std::string path() const { return root_.string(); }

 private:
  void enter(std::string_view line) const {
    if (line.size() < 3 || line.find('\0') != std::string_view::npos) return;
    const size_t space = std::min(line.find(' ', 2), line.size());
    const fs::path name(line.substr(2, space - 2));
    const std::string_view rest = line.substr(std::min(space + 1, line.size()));
    // The tree itself stays in its folder; where its links lead is for the reader to mind.
    const fs::path place = (root_ / "sys" / name.relative_path()).lexically_normal();
    std::error_code error;
    const auto real = fs::weakly_canonical(place.parent_path(), error).string();
    if (error || !(real + "/").starts_with(root_.string() + "/")) return;
    fs::create_directories(place.parent_path(), error);
    if (error || fs::exists(fs::symlink_status(place, error))) return;
    if (line[0] == 'L') {
      fs::create_symlink(fs::path(rest), place, error);
    } else {
      std::string text(rest);
      for (size_t at = 0; (at = text.find("\\n", at)) != std::string::npos;)
        text.replace(at, 2, "\n");
      std::ofstream(place) << text << '\n';
    }
  }
  const fs::path root_;
};

Result<Machine> read(std::string_view input) {
  if (input.starts_with('{')) {
    MC_TRY(const Json json, parse_json(input, kJsonFile));
    return machine_from_json(json, "input");
  }
  return machine_from_xml(input, "input");
}

void use(const Machine& m) {
  const TierTable table = tier_table(m);
  const size_t usable = m.rdma.size() - table.left_out.size();
  const auto all_once = [&](const Tiers& tiers) {
    return tiers[0].size() + tiers[1].size() + tiers[2].size() == usable;
  };
  for (const GpuTiers& row : table.gpus) MC_CHECK(all_once(row.tiers));
  for (const NodeTiers& row : table.nodes) MC_CHECK(all_once(row.tiers));
  const xfer::NicTiers of_nics(m);
  for (const RdmaDevice& device : m.rdma)
    for (const uint8_t tier : of_nics.of(device.name)) MC_CHECK(tier <= 3);
  MC_CHECK(!machine_text(m).empty());
  (void)tiers_text(m, table);
  (void)matrix_text(m, table);
  (void)dump_json(tiers_json(m, table));
  (void)dump_json(matrix_json(m, table));
  (void)dump_json(reference_matrix_json(table));
  (void)machine_dot(m);
  const std::string svg = machine_svg(m);
  MC_CHECK(parse_xml(svg, "svg").has_value());
  MC_CHECK(differences(m, m).empty());
  (void)findings_text(examine(m, Host{}));
  const std::string text = dump_json(machine_json(m));
  const auto again = parse_json(text);
  MC_CHECK(again.has_value());
  auto same = machine_from_json(*again, "again");
  MC_CHECK(same.has_value());
  same->source = m.source;
  MC_CHECK(dump_json(machine_json(*same)) == text);
}

}  // namespace

namespace mc::fuzz {

void run_topology(std::string_view input) {
  const bool text = input.starts_with('<') || input.starts_with('{') || input.starts_with("\xef");
  if (text) {
    const auto machine = read(input);
    if (machine) use(*machine);
    MC_CHECK(machine || !machine.error().what.empty());
    return;
  }
  const Tree tree(input);
  const auto machine = discover_sysfs(tree.path());
  if (machine) use(*machine);
  MC_CHECK(machine || machine.error().what.find(tree.path()) != std::string::npos);
  (void)host_sysfs(tree.path());
}

std::vector<std::string_view> words_topology() {
  return {"<object type=\"Bridge\" bridge_type=\"0-1\" bridge_pci=\"0000:[00-1f]\">",
          "<object type=\"PCIDev\" pci_busid=\"0000:01:00.0\" pci_type=\"0302 [10de:2330]\"/>",
          "<object type=\"OSDev\" name=\"mlx5_0\" osdev_type=\"3\"/>",
          "</object>",
          "</topology>",
          "<object type=\"NUMANode\" os_index=\"1\" cpuset=\"0x3\" nodeset=\"0x2\"/>",
          "</pci>",
          "<pci busid=\"0001:01:00.0\" class=\"0x060400\">",
          "<nic><net name=\"a\" port=\"1\"/></nic>",
          "-1",
          "0",
          "1",
          "4294967296",
          "18446744073709551616",
          "99999999999999999999",
          "0x",
          "0xffffffff,0xffffffff",
          ",,,,,,",
          "0-4294967295",
          "0-1048575,0-1048575",
          "0000:00:00.0",
          "10000:e1:00.0",
          "ffffffff:ff:1f.7",
          "PCIDev",
          "Bridge",
          "OSDev",
          "NUMANode",
          "null",
          "[]",
          "{}",
          "1e308",
          "true",
          "../../../../..",
          "/",
          "..",
          "&#x110000;",
          "&lt;",
          "<![CDATA[",
          "-->",
          "3.0",
          "2.0",
          "\xff\xfe",
          "\n",
          "\nL class/infiniband/x ../../devices",
          "\nL devices/loop ../devices"};
}

}  // namespace mc::fuzz
