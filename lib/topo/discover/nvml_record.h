// Saves NVML's answer in a recording (topo/discover/capture.h), and loads it. The file is nvml.json
// beside sys/.
//
// Errors: kInvalid, kDenied and the like, with the file. Thread: any.
#pragma once
#include <optional>
#include <string>

#include "base/result.h"
#include "topo/discover/nvml.h"

namespace mc::topo {

std::string nvml_to_text(const NvmlAnswer& answer);
Result<NvmlAnswer> nvml_from_text(const std::string& text, const std::string& where);

// The answer in the recording with this sys/ folder; nothing when it has none.
Result<std::optional<NvmlAnswer>> recorded_nvml(const std::string& sys_folder);
std::string nvml_record_of(const std::string& sys_folder);  // the file's path

}  // namespace mc::topo
