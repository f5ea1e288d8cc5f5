// Queries NVML, NVIDIA's management library, for GPUs, NVLinks and PCIe paths. A path says how far
// apart the driver sees a pair of GPUs. libnvidia-ml.so.1 is loaded on first use; nothing is
// linked, and machines without it work as before. The declarations are our own, of the few
// functions that are used.
//
// An answer is a value, so that a recording can hold one (topo/discover/capture.h).
// topo/model/gpu_links.h says what it means for a machine.
//
// Thread: any; a lock is held during a query. NVML stays initialised for the life of the process,
// because starting it takes seconds when no other process keeps the driver awake.
#pragma once
#include <string>

#include "topo/model/nvml_answer.h"

namespace mc::topo {

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// Tests give another `library`. Never fails: `why_none` says what is missing.
NvmlAnswer ask_nvml(const std::string& library = kNvmlLibrary);

}  // namespace mc::topo
