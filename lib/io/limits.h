// Raises limits of this process.
//
// Thread: any.
#pragma once
#include <cstdint>

namespace mc::io {

// Raises the soft limit on open files to `wanted`, or to the hard limit if that is lower.
// Returns: the limit in force afterwards.
uint64_t raise_open_files(uint64_t wanted);

}  // namespace mc::io
