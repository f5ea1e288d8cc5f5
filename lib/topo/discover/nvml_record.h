// NVML's answer as a file of a recording (topo/discover/capture.h), so that it is there when the
// recording is looked at: nvml.json beside sys/.
//
// Thread: any. Errors: kInvalid, kDenied and the like, with the file.
#pragma once
#include <optional>
#include <string>

#include "base/result.h"
#include "topo/discover/nvml.h"

namespace mc::topo {

std::string nvml_to_text(const NvmlAnswer& answer);
Result<NvmlAnswer> nvml_from_text(const std::string& text, const std::string& where);

// What the recording with this sys/ folder holds; nothing when it was made without.
Result<std::optional<NvmlAnswer>> recorded_nvml(const std::string& sys_folder);
std::string nvml_record_of(const std::string& sys_folder);  // the file's path

}  // namespace mc::topo
