// Records the /sys and /proc files that discovery reads as a folder. A machine can then be examined
// elsewhere, and a bug report becomes a test.
//
// NVML's answer is recorded beside them, as nvml.json (topo/discover/nvml_record.h).
//
// It records only what topology needs: no MAC addresses, host names or serial numbers. Files of
// /sys that cannot be read are left out.
//
// Errors: kExists when the folder exists and is not empty; kNoSpace and the like from writing.
// Thread: any.
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
