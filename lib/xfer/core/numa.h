// Where memory lies, for the choice of NICs.
//
// Thread: any.
#pragma once
#include <string>

namespace mc::xfer {

// How many NUMA nodes the machine of a sysfs tree has; 1 when it does not tell.
size_t numa_nodes(const std::string& sysfs);
// The node of the page at `p`, which is touched by that; -1 where the kernel does not tell.
int numa_node_of(const void* p);

}  // namespace mc::xfer
