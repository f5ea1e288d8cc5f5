// What NVML, the management library of NVIDIA's driver, tells of GPUs: their names, their NVLinks
// and how far apart the driver sees each pair. libnvidia-ml.so.1 is loaded when it is first asked
// for; nothing is linked, and a machine without it is as before. Our own declarations of the little
// that is used.
//
// An answer is a value, so that a recording can hold one (topo/discover/capture.h); what it means
// for a machine is topo/model/gpu_links.h.
//
// Thread: any; a lock is held while the library is asked. NVML stays initialised for the life of
// the process, as starting it takes seconds where nothing else keeps the driver awake.
#pragma once
#include <string>

#include "topo/model/nvml_answer.h"

namespace mc::topo {

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

// `library` is another one in tests. Never fails: `why_none` tells what is missing.
NvmlAnswer ask_nvml(const std::string& library = kNvmlLibrary);

}  // namespace mc::topo
