// A /sys tree, live or recorded, read as the few facts topology needs. Every read is bounded; links
// that leave the tree are not followed, so a tree recorded elsewhere can be opened safely.
//
// Thread: any; only reads. Errors: kInvalid with the file when its content makes no sense; what is
// absent is simply empty, since kernels and recordings differ in what they hold.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "topo/model.h"

namespace mc::topo {

// A PCI function and the ids that say what it is.
struct PciFunction {
  Place at;
  uint32_t class_code = 0;  // 24 bits: class, subclass, interface
  uint32_t vendor = 0, device = 0;
};
using PciFunctions = std::map<std::string, PciFunction>;  // by address

class Sysfs {
 public:
  // `folder` holds sys/, or is itself the sys folder.
  static Result<Sysfs> open(const std::string& folder);

  std::optional<std::string> text(const std::string& path) const;  // trimmed
  std::vector<std::string> names(const std::string& path) const;   // of a folder's entries, sorted
  std::optional<std::string> real_path(const std::string& path) const;  // below the root, "a/b/c"
  int numa_node(const std::string& device_path) const;

  Result<std::vector<NumaNode>> numa_nodes() const;
  PciFunctions pci_functions() const;
  // Where the device behind a class entry ("class/net/eth0") sits.
  Place place(const std::string& class_path, const PciFunctions& functions) const;
  std::vector<RdmaDevice> rdma_devices(const PciFunctions& functions) const;
  std::vector<NetDevice> net_devices(const PciFunctions& functions) const;

 private:
  explicit Sysfs(std::string root) : root_(std::move(root)) {}
  std::string root_;  // canonical
};

// "0-3,8" as the numbers, sorted. `where` names the file in an error.
Result<std::vector<int>> parse_cpu_list(const std::string& list, const std::string& where);

}  // namespace mc::topo
