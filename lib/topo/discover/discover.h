// Discovers a machine: live through hwloc, or from a recorded sysfs tree or XML.
//
// The NUMA node of a device is always the kernel's numa_node file. hwloc takes PCI locality from
// local_cpus, which firmware often gets wrong in another way. So hwloc supplies nodes and the PCI
// tree; sysfs supplies numa_node, the RDMA ports and the network devices. A PCI device that says -1
// on a machine with one NUMA node is put on that node.
//
// NVML reports GPUs and their links: the live machine is queried, a recording holds the answer.
//
// Errors: kInvalid and those of reading; a machine without GPU or RDMA is not an error. Thread:
// any. Reads files, sends nothing.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "topo/model/model.h"

namespace mc::topo {

Result<Machine> discover_live();
// The live machine from the kernel's files alone: quick, for a service that describes its host.
Result<Machine> discover_kernel();
// `folder` holds the recorded sys/ (or is it).
Result<Machine> discover_sysfs(const std::string& folder);
// hwloc XML (lstopo) or NCCL topology XML: the root element says which. Port states that the file
// does not hold count as active.
Result<Machine> discover_xml(const std::string& file);
// The same of text; errors call it `where`.
Result<Machine> machine_from_xml(std::string_view text, const std::string& where);
// "live", a folder (recorded sysfs), FILE.json (of "mc-topo show --output json") or an XML file.
Result<Machine> discover_any(const std::string& what);

}  // namespace mc::topo
