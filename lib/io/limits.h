// Limits of this process that a service may raise for itself.
//
// Thread: any.
#pragma once
#include <cstdint>

namespace mc::io {

// Raises the soft limit on open files to `wanted`, or as far as the hard limit lets. Returns the
// limit that holds then.
uint64_t raise_open_files(uint64_t wanted);

}  // namespace mc::io
