// Finds in a text the tokens that are read as they are written, before the text is cut: added and
// special ones.
//
// At each place the longest is taken; the search goes on behind it. A token that must be a single
// word is passed over where letters touch it.
//
// Thread: const calls, any. Source: HF tokenizers' AddedVocabulary.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "model/tokens/piece_table.h"

namespace mc::model {

class MarkedTokens {
 public:
  struct Mark {
    std::string text;
    int32_t token = 0;
    bool takes_left = false, takes_right = false;  // the white space beside it
    bool single_word = false, special = false;
  };
  void add(Mark mark);  // an empty text is none; the first of one text counts
  bool empty() const { return marks_.empty(); }

  struct Found {
    size_t begin = 0, end = 0;
    int32_t token = -1;  // -1: none
  };
  // The next in `text` at `from` or after it; without `specials` those are passed over as text.
  Found next(std::string_view text, size_t from, bool specials) const;

 private:
  const Mark* at(std::string_view text) const;

  std::vector<Mark> marks_;
  PieceTable by_text_;                          // places in marks_
  std::array<std::vector<size_t>, 256> sizes_;  // of the marks with that first byte, longest first
};

}  // namespace mc::model
