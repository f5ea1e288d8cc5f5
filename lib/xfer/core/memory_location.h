// The NUMA node and GPU of a memory range, and of both ends of a transfer. The rail scheduler uses
// them to rank NICs.
//
// Thread: values.
#pragma once

namespace mc::xfer {

struct MemoryLocation {
  int node = -1;  // NUMA node; of a GPU's memory, the GPU's; -1: unknown
  int gpu = -1;   // as topo::Machine numbers them; -1: memory of the host, or of a GPU not known
  friend bool operator==(const MemoryLocation&, const MemoryLocation&) = default;
};

struct MemoryEnds {
  MemoryLocation here, there;  // of the local bytes, and of the peer's, as its machine numbers them
  MemoryEnds(MemoryLocation local = {}, MemoryLocation remote = {}) : here(local), there(remote) {}
  bool known() const { return !(here == MemoryLocation{} && there == MemoryLocation{}); }
};

}  // namespace mc::xfer
