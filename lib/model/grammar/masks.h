// Says which tokens of a vocabulary may follow a text, for one grammar.
//
// Most of it depends on where a text is in its rule and not on what called the rule: this is
// computed once and kept. Tokens that leave the rule are followed into what called it, each time.
//
// Errors: kNoSpace where that is too much work.
// Thread: one owner. Pure. Source: Dong et al. 2024 (XGrammar): tokens that do not depend on the
// context.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/grammar/automaton.h"
#include "model/grammar/matcher.h"
#include "model/grammar/token_trie.h"

namespace mc::model::grammar {

class Masks {
 public:
  static constexpr size_t kKeptBytes = 16 << 20;   // of masks
  static constexpr size_t kStepsMax = 50'000'000;  // nodes of the trie that one mask looks at

  Masks(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie);

  // Sets `allowed`, of the vocabulary's size, to the tokens after which the text can still be
  // completed. Those that end a text are not among them: matcher.complete() says so.
  Result<> after(const Matcher& matcher, TokenSet& allowed);

  struct Counts {
    uint64_t found = 0, computed = 0;  // parts of masks that were kept, or not
  };
  const Counts& counts() const { return counts_; }
  const Automaton& automaton() const { return *automaton_; }

 private:
  using States = std::vector<uint32_t>;
  struct Kept {  // of states of one rule, whatever called it
    TokenSet tokens;
    std::vector<uint32_t> left;  // nodes of the trie where the rule ended, and bytes follow
  };
  // What the bytes of a token lead to, found as it is needed; kDead: nowhere.
  static constexpr uint32_t kUnknown = 0, kDead = 1, kFirst = 2;

  Result<const Kept*> kept(const States& states);
  Result<> leave(const Matcher& matcher, std::vector<uint32_t> nodes, uint32_t stack,
                 TokenSet& allowed);
  Result<> walk(uint32_t node, uint32_t local, TokenSet& tokens, std::vector<uint32_t>& left);
  Result<uint32_t> local_of(std::vector<Place> seeds);
  Result<uint32_t> next(uint32_t local, uint32_t byte_class);
  void forget_locals();

  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const TokenTrie> trie_;
  std::map<States, Kept> kept_;
  size_t kept_bytes_ = 0;
  // Places whose stacks begin where a walk began.
  Stacks stacks_;
  std::vector<Places> locals_;
  std::map<std::vector<Place>, uint32_t> ids_;  // with `complete` as a last place
  std::vector<uint32_t> table_;                 // [local][class]
  std::vector<uint32_t> path_;                  // of a walk, by depth
  size_t places_ = 0;                           // of all locals
  size_t steps_ = 0;
  Counts counts_;
};

}  // namespace mc::model::grammar
