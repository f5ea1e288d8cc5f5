// Reads topology facts from a /sys tree, live or recorded. Every read is bounded. Links that leave
// the tree are not followed, so that a tree recorded elsewhere is safe to open.
//
// Errors: kInvalid with the file when its content makes no sense. What is absent is empty, because
// kernels and recordings differ in what they hold. Thread: any; only reads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "topo/model/model.h"
#include "topo/model/pci.h"

namespace mc::topo {

class Sysfs {
 public:
  // `folder` holds sys/, or is itself the sys folder.
  static Result<Sysfs> open(const std::string& folder);

  std::optional<std::string> text(const std::string& path) const;  // trimmed
  std::string bytes(const std::string& path) const;               // as they are; "" when unreadable
  std::vector<std::string> names(const std::string& path) const;  // of a folder's entries, sorted
  std::optional<std::string> real_path(const std::string& path) const;  // below the root, "a/b/c"
  int numa_node(const std::string& device_path) const;

  Result<std::vector<NumaNode>> numa_nodes() const;
  PciFunctions pci_functions() const;
  // Where the device behind a class entry ("class/net/eth0") sits.
  DeviceLocation location(const std::string& class_path, const PciFunctions& functions) const;
  std::vector<RdmaDevice> rdma_devices(const PciFunctions& functions) const;
  std::vector<NetDevice> net_devices(const PciFunctions& functions) const;
  std::vector<Disk> disks(const PciFunctions& functions) const;
  std::string driver(const std::string& device_path) const;  // of "bus/pci/devices/..."; "" if none
  PciLink link(const std::string& device_path) const;
  const std::string& root() const { return root_; }

 private:
  explicit Sysfs(std::string root) : root_(std::move(root)) {}
  std::string root_;  // canonical
};

}  // namespace mc::topo
