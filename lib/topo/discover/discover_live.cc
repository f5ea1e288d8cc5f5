// Separate from discover.cc, so that only programs that need hwloc's view link libhwloc.
#include <filesystem>

#include "base/json.h"
#include "topo/discover/assemble.h"
#include "topo/discover/discover.h"
#include "topo/discover/hwloc_view.h"
#include "topo/formats/json.h"

namespace mc::topo {
namespace {

// hwloc's nodes with the CPUs that the kernel assigns to them.
Result<std::vector<NumaNode>> live_nodes(std::vector<NumaNode> nodes, const Sysfs& sysfs) {
  MC_TRY(const auto of_kernel, sysfs.numa_nodes());
  for (NumaNode& node : nodes) {
    for (const NumaNode& known : of_kernel) {
      if (known.id == node.id) node.cpus = known.cpus;
    }
  }
  return nodes;
}

}  // namespace

Result<Machine> discover_live() {
  MC_TRY(const Sysfs sysfs, Sysfs::open("/sys"));
  MC_TRY(HwlocView view, hwloc_live());
  MC_TRY(auto nodes, live_nodes(std::move(view.nodes), sysfs));
  for (auto& [address, function] : view.functions) {
    function.at.numa = sysfs.numa_node("bus/pci/devices/" + address);
    function.at.link = sysfs.link("bus/pci/devices/" + address);
  }
  Machine machine = assemble("live", std::move(nodes), view.functions, sysfs, ask_nvml());
  add_addresses(machine.nets);
  return machine;
}

Result<Machine> discover_any(const std::string& what) {
  if (what == "live") return discover_live();
  std::error_code error;
  if (std::filesystem::is_directory(what, error)) return discover_sysfs(what);
  if (!what.ends_with(".json")) return discover_xml(what);
  MC_TRY(const Json json, read_json_file(what));
  return machine_from_json(json, what);
}

}  // namespace mc::topo
