#include "model/grammar/masks.h"

#include <algorithm>
#include <utility>

namespace mc::model::grammar {
namespace {

constexpr size_t kLocalsMax = 1 << 16;
constexpr size_t kLocalPlacesMax = 1 << 21;

Failure too_much() {
  return fail(Code::kNoSpace,
              "the grammar is too ambiguous here to say which tokens may come: make it simpler");
}

}  // namespace

Masks::Masks(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const TokenTrie> trie)
    : automaton_(std::move(automaton)), trie_(std::move(trie)) {
  path_.resize(TokenTrie::kLongest + 1);
  forget_locals();
}

void Masks::forget_locals() {
  stacks_.clear();
  ids_.clear();
  places_ = 0;
  locals_.assign(kFirst, {});
  table_.assign(kFirst * automaton_->classes(), kDead);
}

Result<uint32_t> Masks::local_of(std::vector<Place> seeds) {
  Places places;
  if (!places.close(*automaton_, stacks_, std::move(seeds))) return too_much();
  std::vector<Place> key = places.at;
  if (places.complete) key.push_back({UINT32_MAX, UINT32_MAX});
  if (key.empty()) return kDead;
  const auto [it, added] = ids_.try_emplace(std::move(key), static_cast<uint32_t>(locals_.size()));
  if (!added) return it->second;
  places_ += places.at.size();
  if (locals_.size() >= kLocalsMax || places_ >= kLocalPlacesMax) return too_much();
  locals_.push_back(std::move(places));
  table_.resize(table_.size() + automaton_->classes(), kUnknown);
  return it->second;
}

Result<uint32_t> Masks::next(uint32_t local, uint32_t byte_class) {
  std::vector<Place> seeds = locals_[local].after(*automaton_, automaton_->byte_of(byte_class));
  uint32_t to = kDead;
  if (!seeds.empty()) {
    MC_TRY(to, local_of(std::move(seeds)));
  }
  table_[local * automaton_->classes() + byte_class] = to;
  return to;
}

// The tokens under a node of the trie, with `local` at that node.
Result<> Masks::walk(uint32_t node, uint32_t local, TokenSet& tokens, std::vector<uint32_t>& left) {
  const TokenTrie& trie = *trie_;
  const uint32_t classes = automaton_->classes(), end = trie.end(node);
  path_[trie.depth(node)] = local;
  for (uint32_t i = node + 1; i < end;) {
    ++steps_;
    const uint32_t from = path_[trie.depth(i) - 1], of = automaton_->class_of(trie.byte(i));
    uint32_t to = table_[from * classes + of];
    if (to == kUnknown) {
      MC_TRY(to, next(from, of));
    }
    if (to == kDead) {
      i = trie.end(i);
      continue;
    }
    path_[trie.depth(i)] = to;
    for (const int32_t token : trie.tokens(i)) tokens.add(static_cast<size_t>(token));
    if (locals_[to].complete && trie.end(i) > i + 1) left.push_back(i);
    ++i;
  }
  return steps_ <= kStepsMax ? Result<>() : too_much();
}

Result<const Masks::Kept*> Masks::kept(const States& states) {
  const auto it = kept_.find(states);
  if (it != kept_.end()) {
    ++counts_.found;
    return &it->second;
  }
  ++counts_.computed;
  std::vector<Place> seeds;
  for (const uint32_t s : states) seeds.push_back({s, Stacks::kBottom});
  MC_TRY(const uint32_t local, local_of(std::move(seeds)));
  Kept made{TokenSet(trie_->vocab()), {}};
  MC_TRY_(walk(0, local, made.tokens, made.left));
  made.left.shrink_to_fit();
  const size_t bytes = made.tokens.words().size_bytes() + 4 * (made.left.size() + states.size());
  if (kept_bytes_ + bytes > kKeptBytes) {
    kept_.clear();
    kept_bytes_ = 0;
  }
  kept_bytes_ += bytes;
  return &kept_.emplace(states, std::move(made)).first->second;
}

// The rule of the text ended at these nodes of the trie: goes on with what called it.
Result<> Masks::leave(const Matcher& matcher, std::vector<uint32_t> nodes, uint32_t stack,
                      TokenSet& allowed) {
  const Stacks& stacks = matcher.stacks();
  for (; stack != Stacks::kBottom && !nodes.empty(); stack = stacks.below(stack)) {
    MC_TRY(const uint32_t local, local_of({{stacks.top(stack), Stacks::kBottom}}));
    std::vector<uint32_t> left;
    if (locals_[local].complete) left = nodes;  // it may end without a byte too
    for (const uint32_t node : nodes) MC_TRY_(walk(node, local, allowed, left));
    std::sort(left.begin(), left.end());
    left.erase(std::unique(left.begin(), left.end()), left.end());
    nodes = std::move(left);
  }
  return {};
}

Result<> Masks::after(const Matcher& matcher, TokenSet& allowed) {
  allowed.clear();
  steps_ = 0;
  if (locals_.size() > kLocalsMax / 2 || places_ > kLocalPlacesMax / 2) forget_locals();
  std::map<uint32_t, States> by_stack;  // places are sorted, so each is too
  for (const Place& p : matcher.places()) by_stack[p.stack].push_back(p.state);
  for (const auto& [stack, states] : by_stack) {
    MC_TRY(const Kept* const part, kept(states));
    allowed.add(part->tokens);
    if (stack == Stacks::kBottom || part->left.empty()) continue;
    MC_TRY_(leave(matcher, part->left, stack, allowed));
  }
  return {};
}

}  // namespace mc::model::grammar
