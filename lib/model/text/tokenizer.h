// Converts text to tokens and back by byte-pair encoding. It reads SentencePiece models and HF
// tokenizer.json, and uses plain bytes if a model has neither.
//
// encode() never fails: bytes that are not UTF-8 and characters the vocabulary lacks become byte
// tokens, or the unknown token if there are none. Text never becomes a special token: a prompt that
// spells "</s>" is these four characters; added tokens that are not special are found in it first.
// bytes() of an id that is special, unused or outside the vocabulary is empty.
//
// Thread: const calls, any. Source: SentencePiece (Kudo and Richardson 2018), its BPE encoder: the
// best-scored adjacent pair is joined first, the leftmost of equal ones.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/text/marked_tokens.h"
#include "model/text/pre_tokenizer.h"

namespace mc::model {

class Tokenizer {
 public:
  // How text is cut and spaces are written before pairs are joined.
  enum class Style : uint8_t { kBytes, kSentencePiece, kHuggingFace };

  // Bytes are the tokens 0 to 255; tokens beyond are shown as made-up words, each id its own.
  static Tokenizer bytes_only(uint32_t vocab);
  // A SentencePiece .model file (its protobuf). Errors: kCorrupt; kUnsupported for unigram models
  // and character normalization.
  static Result<Tokenizer> sentencepiece(std::string_view model);
  // The same from its parts: `kind` as SentencePiece counts them (1 normal, 2 unknown, 3 control, 4
  // user-defined, 6 byte). Errors: kCorrupt.
  struct Piece {
    std::string text;
    float score = 0;
    uint64_t kind = 1;
  };
  static Result<Tokenizer> scored_pieces(std::vector<Piece> pieces, int64_t bos, bool prefix_space);
  // A HF tokenizer.json. Errors: kInvalid, kUnsupported with the name of what is not done here.
  static Result<Tokenizer> hugging_face(const Json& tokenizer);
  // tokenizer.json or tokenizer.model of a folder, or bytes when it has neither; `vocab` of the
  // model: a tokenizer with more tokens is refused. Of tokenizer_config.json it takes
  // add_bos_token.
  static Result<Tokenizer> open(const std::string& folder, uint32_t vocab);

  // `begin`: with the token that begins a text, where the tokenizer has one.
  std::vector<int32_t> encode(std::string_view text, bool begin = true) const;
  // Of a text that a template wrote: what spells a special or an added token is that token, and
  // nothing is put before it.
  std::vector<int32_t> encode_marked(std::string_view text) const;
  // Adds the tokens of a text that comes after others.
  void encode_more(std::string_view text, std::vector<int32_t>& out) const;
  std::string_view bytes(int32_t token) const;
  // As the tokenizers' own decoders: the space that encode() put before a text is taken off.
  std::string decode(std::span<const int32_t> tokens) const;

  // The most bytes of a text that one token of encode() stands for; 0: there is no such bound.
  size_t longest() const;
  uint32_t vocab() const { return static_cast<uint32_t>(bytes_.size()); }
  int32_t bos() const { return bos_; }  // -1: none
  bool special(int32_t token) const;
  std::string_view piece(int32_t token) const;  // as written in the vocabulary; "": none
  std::optional<int32_t> find(std::string_view piece) const;  // as written in the vocabulary
  Style style() const { return style_; }
  // Whether encode() puts a space before a text; decoders of partial texts need it.
  bool adds_space() const { return prefix_space_ && !byte_level_; }

 private:
  friend class SpmReader;
  friend class HfReader;
  struct Symbol;
  struct Join {
    double rank;  // lower first
    int32_t token;
  };
  void add_piece(std::string piece, std::string bytes, bool special);
  void encode_parts(std::string_view text, bool first, const MarkedTokens& marks,
                    std::vector<int32_t>& out) const;
  void encode_text(std::string_view text, bool first, std::vector<int32_t>& out) const;
  std::string prepare(std::string_view text, bool first) const;
  void encode_word(std::string_view word, std::vector<int32_t>& out) const;
  void emit(std::string_view symbol, std::vector<int32_t>& out) const;
  const Join* join_of(std::string_view left, std::string_view right, std::string& key) const;

  Style style_ = Style::kBytes;
  std::vector<std::string> pieces_;  // as written in the vocabulary
  std::vector<std::string> bytes_;   // what a token stands for
  std::vector<bool> special_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<std::string, Join> joins_;  // by the piece, or by both parts (HF)
  std::vector<int32_t> byte_tokens_;             // 256, or none
  int32_t bos_ = -1, unknown_ = -1;
  std::vector<Split> splits_;   // one after the other
  MarkedTokens added_, marks_;  // found in texts; and in marked ones
  bool prefix_space_ = false, collapse_spaces_ = false, mark_spaces_ = false;
  bool prefix_bare_ = false;   // no space before a text that begins with one
  bool prefix_first_ = false;  // nor before one that comes after other tokens
  bool compose_ = false;       // NFC
  bool joins_by_parts_ = false, fuse_unknown_ = false, whole_words_ = false, byte_level_ = false;
};

}  // namespace mc::model
