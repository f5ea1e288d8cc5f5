// Records what this tool reads of a machine's /sys and /proc as a folder, so that a machine can be
// looked at elsewhere and a bug report becomes a test.
//
// What NVML says is recorded beside them, as nvml.json (topo/discover/nvml_record.h).
//
// Only what topology needs is taken: no MAC addresses, host names or serial numbers. Files of /sys
// that cannot be read are left out.
//
// Thread: any. Errors: kExists when the folder is there and not empty; kNoSpace and the like from
// writing.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"

namespace mc::topo {

struct Captured {
  size_t files = 0, links = 0;
  uint64_t bytes = 0;
};

// `from` is "/" or a folder that was recorded before. Makes folder/sys and folder/proc.
Result<Captured> capture(const std::string& from, const std::string& folder);

}  // namespace mc::topo
