// Rules of a context-free grammar over bytes, as an expression for each: what JSON schemas, regular
// expressions and GBNF are turned into.
//
// Expressions are nodes of one arena; a node may be used several times. Building stops at a budget:
// nodes beyond it are all the same one, and full() says so.
//
// Thread: one owner. Pure.
#pragma once
#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc::model::grammar {

using ByteSet = std::bitset<256>;

// A set of Unicode characters: ranges that are sorted and apart. Surrogates are in none.
struct Range {
  uint32_t first = 0, last = 0;
  bool operator==(const Range&) const = default;
};
using Characters = std::vector<Range>;
inline constexpr uint32_t kLastCharacter = 0x10FFFF;
Characters normal(Characters any);  // sorted, joined, without surrogates
Characters all_but(const Characters& set);
Characters both(const Characters& a, const Characters& b);

class Rules {
 public:
  using Node = uint32_t;
  using Rule = uint32_t;
  static constexpr uint32_t kNoEnd = UINT32_MAX;
  static constexpr size_t kNodesMax = 1 << 18;

  enum class Kind : uint8_t { kEmpty, kNever, kSet, kText, kSequence, kEither, kRepeat, kRule };
  struct Part {
    Kind kind = Kind::kEmpty;
    uint32_t first = 0, count = 0;  // of children; of texts_ or sets_; the rule
    uint32_t least = 0, most = 0;   // of a repetition
  };

  Node empty() { return add({Kind::kEmpty}); }
  Node never() { return add({Kind::kNever}); }  // matches nothing at all
  Node text(std::string_view bytes);
  Node set(const ByteSet& bytes);
  Node characters(const Characters& set);  // one of them, in UTF-8
  Node sequence(std::span<const Node> parts) { return list(Kind::kSequence, parts); }
  Node either(std::span<const Node> parts) { return list(Kind::kEither, parts); }
  Node sequence(std::initializer_list<Node> parts) {
    return sequence({parts.begin(), parts.size()});
  }
  Node either(std::initializer_list<Node> parts) { return either({parts.begin(), parts.size()}); }
  Node repeat(Node part, uint32_t least, uint32_t most = kNoEnd);
  Node maybe(Node part) { return repeat(part, 0, 1); }
  Node texts(std::vector<std::string> any);  // one of them; they share their beginnings

  Rule declare(std::string name);
  void define(Rule rule, Node body) { rules_[rule].second = body; }
  Node call(Rule rule) { return add({Kind::kRule, rule}); }
  Node named(std::string name, Node body);  // a call of a new rule

  bool full() const { return parts_.size() >= kNodesMax; }
  size_t rules() const { return rules_.size(); }
  const std::string& name(Rule rule) const { return rules_[rule].first; }
  Node body(Rule rule) const { return rules_[rule].second; }
  const Part& part(Node node) const { return parts_[node]; }
  std::span<const Node> children(const Part& p) const {
    return std::span(children_).subspan(p.first, p.count);
  }
  std::string_view text_of(const Part& p) const {
    return std::string_view(texts_).substr(p.first, p.count);
  }
  const ByteSet& set_of(const Part& p) const { return sets_[p.first]; }

 private:
  Node add(Part part);
  Node list(Kind kind, std::span<const Node> parts);
  Node sorted_texts(std::span<const std::string> some, size_t from);
  void utf8(uint32_t first, uint32_t last, std::vector<Node>& out);

  std::vector<Part> parts_;
  std::vector<Node> children_;
  std::string texts_;
  std::vector<ByteSet> sets_;
  std::vector<std::pair<std::string, Node>> rules_;
};

}  // namespace mc::model::grammar
