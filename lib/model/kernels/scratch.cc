#include "model/kernels/scratch.h"

#include <utility>
#include <vector>

namespace mc::model {
namespace {

constexpr size_t kSmall = 64 << 10;  // malloc keeps pieces below this itself
constexpr size_t kMost = 256 << 20;  // that a thread keeps

struct KeptPieces {
  std::vector<ScratchMemory::Piece> pieces;
  size_t bytes = 0;
};
thread_local KeptPieces kept;

}  // namespace

ScratchMemory::ScratchMemory(size_t bytes) {
  auto best = kept.pieces.end();
  for (auto p = kept.pieces.begin(); bytes >= kSmall && p != kept.pieces.end(); ++p)
    if (p->bytes >= bytes && (best == kept.pieces.end() || p->bytes < best->bytes)) best = p;
  if (best == kept.pieces.end()) {
    piece_ = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
    return;
  }
  piece_ = std::move(*best);
  kept.bytes -= piece_.bytes;
  kept.pieces.erase(best);
}

ScratchMemory::~ScratchMemory() {
  if (piece_.bytes < kSmall || kept.bytes + piece_.bytes > kMost) return;
  kept.bytes += piece_.bytes;
  kept.pieces.push_back(std::move(piece_));
}

}  // namespace mc::model
