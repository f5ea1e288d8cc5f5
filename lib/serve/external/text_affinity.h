// Remembers which engines got a text, for prompts whose tokens are not known.
//
// A text is known by its pieces: the hash of each, of all before it, too. This is affinity and no
// more: nothing tells that an engine has a piece still.
//
// Bounded: `pieces_max`; the least recently sent go first. Thread: one owner. Pure.
#pragma once
#include <array>
#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mc::serve {

class TextAffinity {
 public:
  static constexpr size_t kPieceBytes = 512, kPieceTokens = 128;
  static constexpr size_t kTextPiecesMax = 2048;  // of one text

  explicit TextAffinity(size_t pieces_max) : pieces_max_(pieces_max) {}
  // The pieces of a text, and its end as one more.
  static std::vector<uint64_t> pieces(std::string_view text, uint64_t seed);
  // `engine`: a number of its registration, never 0.
  void sent(std::span<const uint64_t> pieces, uint64_t engine);
  uint32_t match(std::span<const uint64_t> pieces, uint64_t engine) const;
  size_t size() const { return pieces_.size(); }

 private:
  struct Piece {
    std::array<uint64_t, 4> engines{};  // the last that got it first
    std::list<uint64_t>::iterator age;
  };
  const size_t pieces_max_;
  std::unordered_map<uint64_t, Piece> pieces_;
  std::list<uint64_t> ages_;  // the last sent first
};

}  // namespace mc::serve
