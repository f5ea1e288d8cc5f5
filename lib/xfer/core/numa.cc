#include "xfer/core/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "topo/discover/sysfs.h"

namespace mc::xfer {

size_t numa_nodes(const std::string& sysfs) {
  const auto tree = topo::Sysfs::open(sysfs);
  if (!tree) return 1;
  const auto nodes = tree->numa_nodes();
  return nodes ? std::max<size_t>(nodes->size(), 1) : 1;
}

int numa_node_of(const void* p) {
  constexpr unsigned kNode = 1, kOfAddress = 2;  // MPOL_F_NODE, MPOL_F_ADDR of linux/mempolicy.h
  int node = -1;
  if (::syscall(SYS_get_mempolicy, &node, nullptr, 0, p, kNode | kOfAddress) != 0) return -1;
  return node;
}

}  // namespace mc::xfer
