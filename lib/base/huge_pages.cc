#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>
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

ZeroedPages::ZeroedPages(std::size_t bytes) : length_(bytes + kHugePage) {
  mapped_ = ::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
  const auto at = reinterpret_cast<std::uintptr_t>(mapped_);
  data_ = static_cast<char*>(mapped_) + (kHugePage - at % kHugePage) % kHugePage;
  (void)::madvise(data_, bytes, MADV_HUGEPAGE);  // a failure only costs speed
}

ZeroedPages::~ZeroedPages() {
  if (mapped_ != nullptr) ::munmap(mapped_, length_);
}

}  // namespace mc
