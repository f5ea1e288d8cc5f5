// Adds NVML's GPU links to a machine, and prints the GPU-to-GPU table. The table is worded as
// nvidia-smi's. Tiers and rails do not use these links: they rank NICs.
//
// A cell is "NV18" (18 NVLinks; "xGMI2" on AMD's), or how far apart two GPUs are over PCIe:
//
//   PIX   one PCIe switch between them        PXB   several
//   PHB   a host bridge of the CPU            NODE  host bridges of one NUMA node
//   SYS   the link between NUMA nodes         ?     the source does not tell
// The driver's word on PCIe takes precedence over what follows from the tree.
//
// Thread: any. Pure: functions of their arguments.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "topo/model/model.h"
#include "topo/model/nvml_answer.h"

namespace mc::topo {

// The number of each GPU, by its PCI address.
std::map<std::string, size_t> gpu_numbers(const Machine& machine);

// Names, links, paths and troubles of the GPUs. One that only NVML knows (a container that hides
// /sys) is added without a place.
void add_links(Machine& machine, const NvmlAnswer& answer);

// Joins those that have links to switches: counts[i] are of machine.gpus[i].
void join_switched(Machine& machine, const std::vector<uint32_t>& counts);

// Empty with less than two GPUs, and with more than a person could read.
inline constexpr size_t kMatrixGpusMax = 64;
std::vector<std::vector<std::string>> gpu_matrix(const Machine& machine);
inline constexpr const char* kGpuMatrixLegend =
    "NV18: 18 NVLinks; PIX: one PCIe switch, PXB: several, PHB: a host bridge, NODE: host bridges "
    "of "
    "one NUMA node, SYS: another node";
const char* gpu_matrix_title(const Machine& machine);  // says so when other links are not known
std::string gpu_matrix_text(const Machine& machine);

}  // namespace mc::topo
