// The limit on open files of this process.
//
// Thread: any.
#pragma once
#include <cstdint>

#include "base/result.h"

namespace mc::io {

// Raises the soft limit on open files to `wanted`, or to the hard limit if that is lower.
// Returns: the limit in force afterwards.
uint64_t raise_open_files(uint64_t wanted);

// Errors: kNoSpace: this process cannot open so many files more. Libraries that abort then are
// called only where it can.
Result<> spare_files(int wanted);

}  // namespace mc::io
