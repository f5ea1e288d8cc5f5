// Memory for panels of weights: in huge pages where the system gives them, for it is read from end
// to end.
//
// Thread: values.
#pragma once
#include <cstddef>
#include <memory>

namespace mc::model {

struct FreePanels {
  void operator()(std::byte* p) const;
};
using PanelMemory = std::unique_ptr<std::byte[], FreePanels>;

PanelMemory allocate_panels(size_t bytes);  // not set to anything; MC_CHECK that there is memory

}  // namespace mc::model
