// Follows a text through a grammar: which places of the grammar the bytes so far can have reached.
//
// A place is a state and a stack of states to go back to when rules end. All that bytes can mean is
// followed at once. Stacks share what is below their top, so equal stacks are one number.
//
// Errors: kNoSpace where a text has more meanings, or is nested deeper, than is followed.
// Thread: one owner. Pure. Source: Lang 1974 and Tomita 1985 (all stacks at once, shared).
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/grammar/automaton.h"

namespace mc::model::grammar {

// Stacks of states. Number 0 is the empty one.
class Stacks {
 public:
  static constexpr uint32_t kBottom = 0, kFull = UINT32_MAX;
  static constexpr size_t kMost = 1 << 20;
  uint32_t push(uint32_t below, uint32_t state);  // kFull: no room
  uint32_t below(uint32_t stack) const { return nodes_[stack].below; }
  uint32_t top(uint32_t stack) const { return nodes_[stack].state; }
  void clear();

 private:
  struct Node {
    uint32_t below = 0, state = 0;
  };
  std::vector<Node> nodes_{1};
  std::unordered_map<uint64_t, uint32_t> ids_;
};

struct Place {
  uint32_t state = 0, stack = 0;
  auto operator<=>(const Place&) const = default;
};

// Where a text can be before its next byte.
struct Places {
  static constexpr size_t kMost = 2048;  // that are followed at once
  std::vector<Place> at;                 // sorted, each with an edge that takes a byte
  bool complete = false;                 // the text may end here

  // Follows edges that take nothing from `from`. False: too many.
  bool close(const Automaton& automaton, Stacks& stacks, std::vector<Place> from);
  // The places after one byte, before close().
  std::vector<Place> after(const Automaton& automaton, uint8_t byte) const;
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Automaton> automaton);

  // False, and nothing changes, where the text cannot go on so.
  Result<bool> take(std::string_view bytes);
  bool complete() const { return places_.complete; }  // the text may end here
  bool over() const { return places_.at.empty(); }    // nothing can follow
  const std::vector<Place>& places() const { return places_.at; }
  const Stacks& stacks() const { return stacks_; }
  const Automaton& automaton() const { return *automaton_; }

 private:
  std::shared_ptr<const Automaton> automaton_;
  Stacks stacks_;
  Places places_;
};

}  // namespace mc::model::grammar
