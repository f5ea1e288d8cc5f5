// Converts text to tokens and back. It reads SentencePiece models, HF tokenizer.json and the
// tokenizers of GGUF files, and uses plain bytes if a model has none.
//
// A text is cut at added tokens, normalized, cut into pieces, and each piece becomes tokens; then
// the post-processor's tokens are put around them. encode() never fails: bytes that are not UTF-8
// and characters the vocabulary lacks become byte tokens, or the unknown token if there are none.
// Text never becomes a special token: a prompt that spells "</s>" is these four characters; added
// tokens that are not special are found in it. bytes() of an id that is special, unused or outside
// the vocabulary is empty.
//
// Thread: const calls, any. Source: HF tokenizers; SentencePiece (Kudo and Richardson 2018).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/result.h"
#include "model/tokens/marked_tokens.h"
#include "model/tokens/normalizer.h"
#include "model/tokens/piece_table.h"
#include "model/tokens/pre_tokenizer.h"
#include "model/tokens/token_model.h"

namespace mc::model {

class Tokenizer {
 public:
  // Where it came from.
  enum class Style : uint8_t { kBytes, kSentencePiece, kHuggingFace };

  // Bytes are the tokens 0 to 255; tokens beyond are shown as made-up words, each id its own.
  // kBytesEnd is special: models of this kind end an answer with it.
  static constexpr uint32_t kBytesEnd = 2;
  static Tokenizer bytes_only(uint32_t vocab);
  // A SentencePiece .model file (its protobuf). Errors: kCorrupt; kUnsupported for models of
  // words or characters.
  static Result<Tokenizer> sentencepiece(std::string_view model);
  // The same from its parts: `kind` as SentencePiece counts them (1 normal, 2 unknown, 3 control, 4
  // user-defined, 6 byte). Errors: kCorrupt.
  struct Piece {
    std::string text;
    float score = 0;
    uint64_t kind = 1;
  };
  static Result<Tokenizer> scored_pieces(std::vector<Piece> pieces, int64_t bos, bool prefix_space);
  struct UnigramParts {
    std::vector<Piece> pieces;
    int64_t bos = -1, eos = -1;  // put around a text; -1: none
    bool prefix_space = true, collapse_spaces = true;
    std::string charsmap;  // bytes of a table (charsmap.h); empty: none
  };
  static Result<Tokenizer> unigram(UnigramParts parts);
  // A HF tokenizer.json. Errors: kInvalid, kUnsupported with the name of what is not done here.
  static Result<Tokenizer> hugging_face(const Json& tokenizer);
  // tokenizer.json or tokenizer.model of a folder, or bytes when it has neither; `vocab` of the
  // model: a tokenizer with more tokens is refused. Of tokenizer_config.json it takes
  // add_bos_token.
  static Result<Tokenizer> open(const std::string& folder, uint32_t vocab);

  // `begin`: with the tokens that the post-processor puts before a text and after it.
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
  // Whether decode() takes a space off; decoders of partial texts need it.
  bool adds_space() const { return drops_space_; }

 private:
  friend class SpmReader;
  friend class HfReader;
  void add_piece(std::string piece, std::string bytes, bool special);
  void encode_parts(std::string_view text, bool first, bool specials,
                    std::vector<int32_t>& out) const;
  void encode_normalized(std::string_view text, bool first, bool specials,
                         std::vector<int32_t>& out) const;
  void encode_text(std::string_view text, bool first, std::vector<int32_t>& out) const;

  Style style_ = Style::kBytes;
  std::vector<std::string> pieces_;  // as written in the vocabulary
  std::vector<std::string> bytes_;   // what a token stands for
  std::vector<bool> special_;
  PieceTable ids_;
  std::vector<int32_t> before_, after_;  // the tokens around a text
  int32_t bos_ = -1;
  MarkedTokens marks_, normalized_marks_;  // found in a text; and once it is normalized
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::shared_ptr<const TokenModel> model_;  // null: bytes
  bool drops_space_ = false, drops_last_space_ = false;
};

}  // namespace mc::model
