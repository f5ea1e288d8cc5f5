// Holds NVML's answer: GPUs, their names and NVLinks, and the path of each pair.
//
// Thread: values.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mc::topo {

struct NvLink {  // one of a GPU's; those that are not there are not listed
  enum class To { kGpu, kSwitch, kOther };  // kOther: a CPU, or not reported
  bool active = false;
  To to = To::kOther;
  std::string remote{};     // PCI address; "" when not reported
  uint32_t generation = 0;  // of NVLink: 4 on H100; 0: not reported
};

struct NvmlGpu {
  std::string pci{};  // as the kernel writes it; "" when NVML cannot say which GPU is in trouble
  std::string name{};
  std::string trouble{};  // "GPU is lost"; "" when it answers
  std::vector<NvLink> links{};
};

struct NvmlPair {
  uint32_t a = 0, b = 0;  // of NvmlAnswer::gpus
  std::string path{};     // "PIX", "PXB", "PHB", "NODE", "SYS" as nvidia-smi; "" when not reported
  std::string no_access{};  // why the one does not read or write the other's memory; "" if it does
  std::optional<bool> nvlink{};  // the driver sends what goes between them over NVLink
};

struct NvmlAnswer {
  std::string why_none{};           // if set, the other fields are empty
  bool installed = false;           // the library is there, be it broken
  std::string library{}, driver{};  // versions
  std::vector<NvmlGpu> gpus{};
  std::vector<NvmlPair> pairs{};
};

// "NVML 12.550.54, driver 550.54", or "no NVML: ..." with the reason.
std::string nvml_summary(const NvmlAnswer& answer);

}  // namespace mc::topo
