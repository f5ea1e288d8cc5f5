// Finds the NUMA node of memory, by which rails rank NICs.
//
// Thread: any.
#pragma once
#include <string>

namespace mc::xfer {

// Returns: the number of NUMA nodes in a sysfs tree; 1 when the tree does not say.
size_t numa_nodes(const std::string& sysfs);
// Returns: the node of the page at `p`, which this touches; -1 where the kernel does not say.
int numa_node_of(const void* p);

}  // namespace mc::xfer
