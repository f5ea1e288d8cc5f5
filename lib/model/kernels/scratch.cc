#include "model/kernels/scratch.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/result.h"

namespace mc::model {
namespace {

constexpr size_t kHugePage = 2u << 20;
constexpr size_t kSmallPiece = 64 << 10;  // malloc keeps pieces below this itself
constexpr size_t kMostKept = 256 << 20;   // that a thread keeps

struct KeptPieces {
  std::vector<ScratchMemory::Piece> pieces;
  size_t bytes = 0;
};
thread_local KeptPieces kept_pieces;

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

ScratchMemory::ScratchMemory(size_t bytes) {
  auto best = kept_pieces.pieces.end();
  for (auto p = kept_pieces.pieces.begin(); bytes >= kSmallPiece && p != kept_pieces.pieces.end();
       ++p)
    if (p->bytes >= bytes && (best == kept_pieces.pieces.end() || p->bytes < best->bytes)) best = p;
  if (best == kept_pieces.pieces.end()) {
    piece_ = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
    return;
  }
  piece_ = std::move(*best);
  kept_pieces.bytes -= piece_.bytes;
  kept_pieces.pieces.erase(best);
}

ScratchMemory::~ScratchMemory() {
  if (piece_.bytes < kSmallPiece || kept_pieces.bytes + piece_.bytes > kMostKept) return;
  kept_pieces.bytes += piece_.bytes;
  kept_pieces.pieces.push_back(std::move(piece_));
}

std::byte* thread_scratch(size_t bytes) {
  thread_local PanelMemory memory;
  thread_local size_t size = 0;
  if (bytes > size) {
    memory = allocate_panels(bytes);
    size = bytes;
  }
  return memory.get();
}

}  // namespace mc::model
