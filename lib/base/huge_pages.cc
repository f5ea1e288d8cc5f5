#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdlib>

namespace mc {
namespace {
constexpr std::align_val_t kLine{64};
}  // namespace

void* huge_allocate(std::size_t bytes) {
  if (bytes < kHugeFrom) return ::operator new(bytes, kLine);
  const std::size_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const memory = std::aligned_alloc(kHugePage, whole);
  if (memory == nullptr) throw std::bad_alloc();
  (void)::madvise(memory, whole, MADV_HUGEPAGE);  // a failure only costs speed
  return memory;
}

void huge_free(void* memory, std::size_t bytes) {
  if (bytes < kHugeFrom)
    ::operator delete(memory, kLine);
  else
    std::free(memory);
}

}  // namespace mc
