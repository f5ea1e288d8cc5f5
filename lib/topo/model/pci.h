// Interprets PCI ids and addresses.
//
// Thread: any. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "topo/model/model.h"

namespace mc::topo {

// A PCI function and the ids that say what it is.
struct PciFunction {
  DeviceLocation at;
  uint32_t class_code = 0;  // 24 bits: class, subclass, interface
  uint32_t vendor = 0, device = 0;
};
using PciFunctions = std::map<std::string, PciFunction>;  // by address

// A processor that holds tensors. Display adapters of servers (the console's) are none.
bool is_gpu(const PciFunction& f);
std::string gpu_name(const PciFunction& f);  // "NVIDIA 10de:2330"

// "0000:4f:00.0"; the domain may have more than four digits.
bool is_pci_address(std::string_view s);
bool is_host_bridge(std::string_view s);  // "pci0000:44"
// The same address as the kernel writes it: lower case, with a domain. Nothing when it is none.
std::optional<std::string> kernel_pci_address(std::string_view s);

double parse_gt_per_s(const std::string& s);  // "32.0 GT/s PCIe" is 32; 0: unknown

}  // namespace mc::topo
