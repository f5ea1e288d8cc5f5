// What makes tokens of a piece of text: byte-pair encoding, unigram, WordPiece, whole words.
//
// A model never fails: what its vocabulary lacks becomes byte tokens, the unknown token, or
// nothing.
//
// Thread: const calls, any.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokens/piece_table.h"

namespace mc::model {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the tokens of a piece that is not empty.
  virtual void encode(std::string_view piece, std::vector<int32_t>& out) const = 0;
  // A token may stand for any number of bytes: runs of what the vocabulary lacks, or nothing.
  virtual bool unbounded() const = 0;
};

// What is done with what the vocabulary lacks.
struct Unknown {
  std::vector<int32_t> bytes;  // by byte, -1 for those without a token; empty: none
  int32_t token = -1;          // -1: it is left out
  bool fuse = false;           // a run of it is one token

  // Appends the byte tokens of a text; false: not all bytes have one.
  bool as_bytes(std::string_view text, std::vector<int32_t>& out) const;
};

// Byte-pair encoding by a list of merges, the first of the list first, the leftmost of equal ones.
// Source: HF tokenizers' BPE.
struct Merge {
  int32_t left, right, made;
};
struct BpeOptions {
  Unknown unknown;
  bool raw_bytes = false;      // symbols are bytes, not characters
  bool whole_words = false;    // a piece that is in the vocabulary is that token
  std::string prefix, suffix;  // of characters within a word; of a word's last one
};
std::unique_ptr<TokenModel> make_bpe(PieceTable vocab, size_t ids, std::vector<Merge> merges,
                                     BpeOptions options);

// Byte-pair encoding by scores: two neighbours whose union is a piece are joined, the best score
// first, the leftmost of equal ones. Source: SentencePiece's bpe_model.cc.
struct ScoredPieces {
  PieceTable vocab;
  std::vector<double> scores;  // by id
};
std::unique_ptr<TokenModel> make_scored_bpe(ScoredPieces pieces, Unknown unknown);

// The cut of a text with the best sum of scores. A character that the vocabulary lacks costs the
// worst score less 10. Source: Kudo 2018; HF tokenizers' Unigram.
std::unique_ptr<TokenModel> make_unigram(const std::vector<std::pair<std::string, int32_t>>& pieces,
                                         std::vector<double> scores, Unknown unknown);

// The longest piece first; a word that cannot be cut so, or of more than `most` characters, is
// unknown. Source: BERT's tokenization.py; HF tokenizers' WordPiece.
std::unique_ptr<TokenModel> make_word_piece(PieceTable vocab, std::string prefix, size_t most,
                                            int32_t unknown);
std::unique_ptr<TokenModel> make_word_level(PieceTable vocab, int32_t unknown);

}  // namespace mc::model
