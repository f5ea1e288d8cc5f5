// Unigram: the best path through a text, over a trie of the pieces.
#include <algorithm>
#include <limits>

#include "model/tokens/token_model.h"
#include "model/tokens/unicode.h"

namespace mc::model {
namespace {

constexpr double kUnknownPenalty = 10;

// Pieces by their bytes: an edge of a node and a byte is a slot of a hash table.
class Trie {
 public:
  static constexpr uint32_t kNowhere = UINT32_MAX, kRoot = 0;

  explicit Trie(const std::vector<std::pair<std::string, int32_t>>& pieces) {
    tokens_.push_back(-1);
    for (const auto& [text, id] : pieces) {
      uint32_t node = kRoot;
      for (const char c : text) node = grow(node, static_cast<unsigned char>(c));
      tokens_[node] = id;  // of two of one text the last counts
    }
  }

  uint32_t step(uint32_t node, unsigned char byte) const {
    const Edge& edge = slots_[place_of(slots_, key_of(node, byte))];
    return edge.to;
  }
  int32_t token(uint32_t node) const { return tokens_[node]; }

 private:
  struct Edge {
    uint64_t key = UINT64_MAX;
    uint32_t to = kNowhere;
  };
  static uint64_t key_of(uint32_t node, unsigned char byte) { return uint64_t{node} << 8 | byte; }
  static size_t place_of(const std::vector<Edge>& slots, uint64_t key) {
    const size_t mask = slots.size() - 1;
    uint64_t mixed = key * 0x9E3779B97F4A7C15u;
    mixed ^= mixed >> 32;
    size_t at = mixed & mask;
    while (slots[at].key != key && slots[at].key != UINT64_MAX) at = (at + 1) & mask;
    return at;
  }
  uint32_t grow(uint32_t node, unsigned char byte) {
    if (2 * tokens_.size() > slots_.size()) widen();
    Edge& edge = slots_[place_of(slots_, key_of(node, byte))];
    if (edge.to == kNowhere) {
      edge = {key_of(node, byte), static_cast<uint32_t>(tokens_.size())};
      tokens_.push_back(-1);
    }
    return edge.to;
  }
  void widen() {
    std::vector<Edge> wider(slots_.size() * 2);
    for (const Edge& edge : slots_)
      if (edge.to != kNowhere) wider[place_of(wider, edge.key)] = edge;
    slots_.swap(wider);
  }

  std::vector<Edge> slots_ = std::vector<Edge>(1024);  // at most half of them taken
  std::vector<int32_t> tokens_;
};

// The best way to a place of the text.
struct Best {
  double score = 0;
  size_t from = SIZE_MAX;  // SIZE_MAX: none yet
  int32_t token = -1;      // -1: the character is unknown
};

class Unigram final : public TokenModel {
 public:
  Unigram(const std::vector<std::pair<std::string, int32_t>>& pieces, std::vector<double> scores,
          Unknown unknown)
      : trie_(pieces), scores_(std::move(scores)), unknown_(std::move(unknown)) {
    double least = std::numeric_limits<double>::infinity();
    for (const double score : scores_) least = std::min(least, score);
    unknown_score_ = least - kUnknownPenalty;
  }

  void encode(std::string_view text, std::vector<int32_t>& out) const override {
    std::vector<Best> best(text.size() + 1);
    for (size_t at = 0; at < text.size();) {
      const size_t size = first_character(text.substr(at)).size;
      extend(text, at, size, best);
      at += size;
    }
    std::vector<size_t> ends;  // of the tokens, from the last
    for (size_t end = text.size(); end > 0; end = best[end].from) ends.push_back(end);
    for (size_t i = ends.size(); i-- > 0;) {
      const Best& way = best[ends[i]];
      if (way.token >= 0) {
        out.push_back(way.token);
        continue;
      }
      size_t end = ends[i];
      while (i > 0 && unknown_.fuse && best[ends[i - 1]].token < 0) end = ends[--i];
      if (!unknown_.as_bytes(text.substr(way.from, end - way.from), out) && unknown_.token >= 0)
        out.push_back(unknown_.token);
    }
  }

  bool unbounded() const override { return unknown_.bytes.empty(); }

 private:
  void extend(std::string_view text, size_t at, size_t character, std::vector<Best>& best) const {
    const double here = best[at].score;
    const auto reach = [&](size_t end, double score, int32_t token) {
      Best& there = best[end];
      if (there.from == SIZE_MAX || score > there.score) there = {score, at, token};
    };
    bool whole = false;  // a piece is just this character
    uint32_t node = Trie::kRoot;
    for (size_t end = at; end < text.size();) {
      node = trie_.step(node, static_cast<unsigned char>(text[end]));
      if (node == Trie::kNowhere) break;
      ++end;
      const int32_t token = trie_.token(node);
      if (token < 0) continue;
      reach(end, here + scores_[static_cast<size_t>(token)], token);
      whole = whole || end - at == character;
    }
    if (!whole) reach(at + character, here + unknown_score_, -1);
  }

  Trie trie_;
  std::vector<double> scores_;
  Unknown unknown_;
  double unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram(const std::vector<std::pair<std::string, int32_t>>& pieces,
                                         std::vector<double> scores, Unknown unknown) {
  return std::make_unique<Unigram>(pieces, std::move(scores), std::move(unknown));
}

}  // namespace mc::model
