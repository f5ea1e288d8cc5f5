// A grammar as a network of automata, one for each rule, over bytes: what a Matcher walks.
//
// A state has edges that take a byte of a set, that take nothing, or that call a rule and go on
// where it ends. Every state can reach the end of its rule: what cannot is cut off, so that any
// text that a matcher takes can be completed.
//
// Errors: kInvalid for what matches no text of finite length, and for left recursion; kNoSpace for
// more than kStatesMax states.
// Thread: values; const calls from any. Pure. Source: Woods 1970 (transition networks).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/grammar/rules.h"

namespace mc::model::grammar {

class Automaton {
 public:
  static constexpr size_t kStatesMax = 1 << 17;

  enum class Take : uint8_t { kNothing, kByte, kRule };
  struct Edge {
    uint32_t to = 0;
    uint32_t what = 0;  // the set of bytes; the first state of the rule
    Take take = Take::kNothing;
  };

  static Result<Automaton> build(const Rules& rules, Rules::Rule root);

  uint32_t start() const { return start_; }
  std::span<const Edge> edges(uint32_t state) const {
    return std::span(edges_).subspan(first_[state], first_[state + 1] - first_[state]);
  }
  // Its rule ends here, and no edge that matters leaves it: a call that leads here needs no way
  // back.
  bool ends(uint32_t state) const { return ends_[state]; }
  bool takes(const Edge& edge, uint8_t byte) const { return sets_[edge.what][byte]; }
  size_t states() const { return ends_.size(); }
  // Bytes of one class are in the same sets.
  uint32_t class_of(uint8_t byte) const { return classes_[byte]; }
  uint8_t byte_of(uint32_t a_class) const { return members_[a_class]; }
  uint32_t classes() const { return static_cast<uint32_t>(members_.size()); }

 private:
  friend class AutomatonBuilder;
  uint32_t start_ = 0;
  std::vector<uint32_t> first_;
  std::vector<Edge> edges_;
  std::vector<bool> ends_;
  std::vector<ByteSet> sets_;
  std::array<uint32_t, 256> classes_{};
  std::vector<uint8_t> members_;  // one of each class
};

}  // namespace mc::model::grammar
