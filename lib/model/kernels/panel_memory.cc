#include "model/kernels/panel_memory.h"

#include <sys/mman.h>

#include <cstdlib>

#include "base/result.h"

namespace mc::model {
namespace {
constexpr size_t kHugePage = 2u << 20;
}  // namespace

void FreePanels::operator()(std::byte* p) const { std::free(p); }

PanelMemory allocate_panels(size_t bytes) {
  const size_t align = bytes >= kHugePage ? kHugePage : 64;
  const size_t whole = (bytes + align - 1) / align * align;
  void* memory = std::aligned_alloc(align, whole);
  MC_CHECK(memory != nullptr);
  if (align == kHugePage) ::madvise(memory, whole, MADV_HUGEPAGE);
  return PanelMemory(static_cast<std::byte*>(memory));
}

}  // namespace mc::model
