// Sources of the engine's own memory: huge pages, a named file, or one NUMA node. The default is a
// memfd.
//
// Thread: a value.
#pragma once
#include <cstdint>

#include "io/fd.h"

namespace mc::xfer {

struct MemorySource {
  bool huge_pages = false;  // of those that the kernel keeps in reserve (vm.nr_hugepages)
  int numa = -1;            // the node whose memory it is to be; -1: any
  // A file, opened to read and write, whose content stays: the memory is its first bytes, and one
  // page more of it is the engine's. It is lengthened as needed, and must not be truncated while
  // any process has it mapped (peers get an error, its owner a SIGBUS). Peers receive this very
  // descriptor: a flock on it lasts until the last of them unmaps the memory.
  io::Fd file;
  bool plain() const { return !huge_pages && numa < 0 && !file; }
};

// Memory mapped from `fd` begins and ends at multiples of this: a huge page on hugetlbfs.
uint64_t map_unit(int fd);

}  // namespace mc::xfer
