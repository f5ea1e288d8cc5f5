// Cuts a text into the pieces that a tokenizer's model reads one at a time.
//
// A run of bytes that are not UTF-8 is a piece of its own, and no pattern takes it away. Where a
// pattern exceeds its match limit (regex.h), the rest of the text is one piece.
//
// Errors: kInvalid, kUnsupported, with the step's name. Thread: const calls, any. Source: HF
// tokenizers' pre-tokenizers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/tokens/growth.h"
#include "model/tokens/regex.h"

namespace mc::model {

// What becomes of the matches of a pattern: they are dropped; pieces; ends of the pieces before
// them; beginnings of those after them; joined with matches that touch them.
enum class Keep : uint8_t { kRemoved, kIsolated, kMergedPrevious, kMergedNext, kContiguous };

// Pieces of a text, in order. They refer to the text, or to `own` where a step rewrote it.
struct Pieces {
  struct Span {
    size_t begin, end;
  };
  std::string_view text;
  std::string own;
  std::vector<Span> spans;
  bool first = false;  // the text begins here, and not after other tokens

  std::string_view operator[](size_t i) const {
    return text.substr(spans[i].begin, spans[i].end - spans[i].begin);
  }
};

class PreTokenizer {
 public:
  // `pre_tokenizer` of a tokenizer.json; null: none. `before`: by what a text has grown already.
  static Result<PreTokenizer> read(const Json* json, const Growth& before = {});
  void add_cut(Regex regex, Keep keep, bool inverted);

  // `out` refers to `text`, which outlives it.
  void split(std::string_view text, bool first, Pieces& out) const;

  // Pieces are bytes, and the vocabulary writes them as letters: the last step is ByteLevel.
  bool byte_level() const { return byte_level_; }
  // Spaces are written as U+2581, and one may be put before a text.
  bool marks_spaces() const { return marks_spaces_; }
  bool adds_space() const { return adds_space_; }
  bool drops_text() const { return drops_text_; }  // not all of a text is in pieces

 private:
  struct Step {
    enum class Kind : uint8_t { kCut, kMarkSpaces, kWriteLetters } kind = Kind::kCut;
    Regex regex{};  // of a cut, as the next two
    Keep keep = Keep::kIsolated;
    bool inverted = false;
    std::string mark{};       // for a space
    bool prefix = false;      // a space before each piece that has none
    bool only_first = false;  // but only before the first of a text
    bool letters = false;     // bytes are written as letters
  };
  struct Reader;
  static void cut(const Step& how, Pieces& pieces);
  static void mark_spaces(const Step& how, Pieces& pieces);
  static void write_letters(const Step& how, Pieces& pieces);

  std::vector<Step> steps_;
  bool byte_level_ = false, marks_spaces_ = false, adds_space_ = false, drops_text_ = false;
};

}  // namespace mc::model
