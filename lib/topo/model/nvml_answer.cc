#include "topo/model/nvml_answer.h"

#include "base/units.h"

namespace mc::topo {

std::string nvml_summary(const NvmlAnswer& answer) {
  if (!answer.why_none.empty()) return "no NVML: " + answer.why_none;
  return "NVML " + (answer.library.empty() ? "of unknown version" : answer.library) + ", driver " +
         (answer.driver.empty() ? "unknown" : answer.driver);
}

}  // namespace mc::topo
