// A SentencePiece table of replacements for characters ("precompiled_charsmap").
//
// The table is a double-array trie of what is replaced, and the replacements, each ended by a 0.
//
// Errors: kCorrupt. Thread: const calls, any. Pure. Source: SentencePiece's normalizer.cc;
// Darts-clone (layout of units); spm_precompiled of the `tokenizers` package (graphemes).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace mc::model {

class Charsmap {
 public:
  static Result<Charsmap> read(std::string_view blob);
  static Result<Charsmap> read_base64(std::string_view text);
  // As SentencePiece does: at each place the longest entry is replaced.
  std::string replace(std::string_view text) const;
  // As the `tokenizers` package does: a grapheme cluster of less than 6 bytes by the shortest entry
  // that it starts with, else each of its characters so.
  std::string replace_graphemes(std::string_view text) const;
  // How many bytes one of a text may become.
  double grows() const { return grows_; }

 private:
  struct Entry {
    size_t size;  // bytes replaced
    std::string_view by;
  };
  std::optional<Entry> find(std::string_view text, bool longest) const;

  double worst() const;

  std::vector<uint32_t> units_;
  std::string texts_;
  double grows_ = 1;
};

}  // namespace mc::model
