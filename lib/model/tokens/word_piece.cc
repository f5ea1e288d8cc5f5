// WordPiece, and vocabularies of whole words.
#include <algorithm>

#include "model/tokens/token_model.h"
#include "model/tokens/unicode.h"

namespace mc::model {
namespace {

class WordPiece final : public TokenModel {
 public:
  WordPiece(PieceTable vocab, std::string prefix, size_t most, int32_t unknown)
      : vocab_(std::move(vocab)), prefix_(std::move(prefix)), most_(most), unknown_(unknown) {}

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    const size_t begin = out.size();
    if (!cut(word, out)) {
      out.resize(begin);
      if (unknown_ >= 0) out.push_back(unknown_);
    }
  }
  bool unbounded() const override { return true; }

 private:
  bool cut(std::string_view word, std::vector<int32_t>& out) const {
    std::vector<size_t> ends;  // of the characters
    for (size_t at = 0; at < word.size();) {
      at += first_character(word.substr(at)).size;
      ends.push_back(at);
      if (ends.size() > most_) return false;
    }
    std::string piece;
    for (size_t at = 0, next = 0; at < word.size();) {
      // What is longer than any piece is none.
      size_t i = static_cast<size_t>(
          std::upper_bound(ends.begin(), ends.end(), at + vocab_.longest()) - ends.begin());
      int32_t id = -1;
      for (; i > next && id < 0; --i) {
        piece = at == 0 ? "" : prefix_;
        piece += word.substr(at, ends[i - 1] - at);
        id = vocab_.find(piece);
      }
      if (id < 0) return false;
      out.push_back(id);
      next = i + 1;
      at = ends[i];
    }
    return true;
  }

  PieceTable vocab_;
  std::string prefix_;
  size_t most_;
  int32_t unknown_;
};

class WordLevel final : public TokenModel {
 public:
  WordLevel(PieceTable vocab, int32_t unknown) : vocab_(std::move(vocab)), unknown_(unknown) {}
  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    const int32_t id = vocab_.find(word);
    if (id >= 0 || unknown_ >= 0) out.push_back(id >= 0 ? id : unknown_);
  }
  bool unbounded() const override { return true; }

 private:
  PieceTable vocab_;
  int32_t unknown_;
};

}  // namespace

std::unique_ptr<TokenModel> make_word_piece(PieceTable vocab, std::string prefix, size_t most,
                                            int32_t unknown) {
  return std::make_unique<WordPiece>(std::move(vocab), std::move(prefix), most, unknown);
}
std::unique_ptr<TokenModel> make_word_level(PieceTable vocab, int32_t unknown) {
  return std::make_unique<WordLevel>(std::move(vocab), unknown);
}

}  // namespace mc::model
