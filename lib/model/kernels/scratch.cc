#include "model/kernels/scratch.h"

#include <utility>
#include <vector>

namespace mc::model {
namespace {

constexpr size_t kSmallPiece = 64 << 10;  // malloc keeps pieces below this itself
constexpr size_t kMostKept = 256 << 20;   // that a thread keeps

struct KeptPieces {
  std::vector<ScratchMemory::Piece> pieces;
  size_t bytes = 0;
};
thread_local KeptPieces kept_pieces;

}  // namespace

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

}  // namespace mc::model
