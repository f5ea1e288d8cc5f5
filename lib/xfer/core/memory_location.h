// The NUMA node and GPU of a memory range. The rail scheduler uses it to rank NICs.
//
// Thread: values.
#pragma once

namespace mc::xfer {

struct MemoryLocation {
  int node = -1;  // NUMA node; of a GPU's memory, the GPU's; -1: unknown
  int gpu = -1;   // as topo::Machine numbers them; -1: memory of the host, or of a GPU not known
  friend bool operator==(const MemoryLocation&, const MemoryLocation&) = default;
};

}  // namespace mc::xfer
